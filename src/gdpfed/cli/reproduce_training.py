"""`gdpfed reproduce main`, `convergence`, ..., `all`, `status`: the paper's experiments that train.

Place: cells -> jobs -> batch -> records -> tables. The same command goes on where it was, however it ended.
"""

import dataclasses
import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from gdpfed.cli import options
from gdpfed.cli.batch_progress import Tracker, estimate_in_words, showing
from gdpfed.cli.show import console, print_json, table
from gdpfed.errors import InputError, MissingExtraError
from gdpfed.results.experiments import EXPERIMENTS, Cell, Scale, cells_of, experiment_of
from gdpfed.results.records import load_records, load_timing, records_of, save_records, save_timing
from gdpfed.results.verdicts import Row, rows_of
from gdpfed.results.without_training import check_datasets
from gdpfed.runs.batch import Batch, Job, PlannedJob, cores_of, finished_seconds, plan_jobs, train_jobs
from gdpfed.runs.estimate import Cost, cost_of, estimate, in_words
from gdpfed.tasks.task import PRESETS

__all__ = ["add_training_commands"]

_STAMP = "simulation: not a private release (seeded noise, data in one place)"
_REPOSITORY_RECORDS = Path("reproduce") / "results"
_SEEDS = {"full": 3, "smoke": 1}

Datasets = Annotated[str, typer.Option("--datasets", help="Data sets, separated by commas.")]
Seeds = Annotated[
    int | None, typer.Option("--seeds", help="How many seeds: 1, 2, ... Default: 3, as in the paper; 1 for smoke.")
]
ScaleName = Annotated[
    str,
    typer.Option(
        "--scale",
        help="'full': the paper's configuration. 'smoke': few rounds and clients, FMNIST on the embedded images; shows "
        "that everything works, and no more.",
    ),
]
Rounds = Annotated[
    int | None, typer.Option("--rounds", help="Fewer rounds than the paper's, where time is short; recorded as such.")
]
Participation = Annotated[
    float | None, typer.Option("--participation", help="Another fraction of clients in a round; recorded as such.")
]
Out = Annotated[Path, typer.Option("--out", help="Folder of runs and plans: finished runs are used, others go on.")]
Records = Annotated[
    Path | None,
    typer.Option(
        "--records",
        help="Folder of the small records. Default: reproduce/results where it exists and the scale is full, else "
        "in --out.",
    ),
]
Workers = Annotated[int | None, typer.Option("--workers", help="Cores that train. Default: all.")]
DataDir = Annotated[Path | None, typer.Option("--data-dir", help="Folder with the data files. Default: $GDPFED_DATA.")]
_OUT = Path("gdpfed-results") / "reproduce"


@dataclass(frozen=True, kw_only=True, eq=False)
class _Asked:
    """What the options of every command here come to."""

    names: tuple[str, ...]
    datasets: tuple[str, ...]
    seeds: int
    scale: Scale
    out: Path
    records: Path
    workers: int
    data_dir: Path | None
    as_json: bool


def _asked(
    names: Sequence[str],
    datasets: str,
    seeds: int | None,
    scale: Scale,
    out: Path,
    records: Path | None,
    workers: int | None,
    data_dir: Path | None,
    as_json: bool,
) -> _Asked:
    count = _SEEDS[scale.name] if seeds is None else seeds
    for option, value in (("--seeds", count), ("--workers", workers or 1)):
        if value < 1 or (option == "--workers" and workers == 0):
            raise InputError(f"expected {option} >= 1, got {option} {seeds if option == '--seeds' else workers}")
    in_repository = _REPOSITORY_RECORDS.is_dir() and scale.name == "full"
    return _Asked(
        names=tuple(experiment_of(name).name for name in names),
        datasets=check_datasets([name.strip() for name in datasets.split(",")]),
        seeds=count,
        scale=scale,
        out=out,
        records=records or (_REPOSITORY_RECORDS if in_repository else out / "records"),
        workers=workers or os.cpu_count() or 1,
        data_dir=data_dir,
        as_json=as_json,
    )


def _wanted(asked: _Asked) -> list[tuple[Cell, Job]]:
    """Every cell with every seed: the paper's own first, a whole table before its next seed."""
    wanted = []
    for place, name in enumerate(asked.names):
        for dataset in asked.datasets:
            for cell in cells_of(EXPERIMENTS[name], dataset, asked.scale):
                for seed in range(1, asked.seeds + 1):
                    weights = f"-{cell.method.weights}" if cell.method.weights else ""
                    job = Job(name=f"{dataset}-{cell.task.settings.method}{weights}-s{seed}", task=cell.task, seed=seed)
                    wanted.append(((cell.paper is None, place, seed), cell, job))
    return [(cell, job) for _, cell, job in sorted(wanted, key=lambda entry: entry[0])]


def _planned(asked: _Asked, *, quiet: bool) -> list[tuple[Cell, PlannedJob]]:
    wanted = _wanted(asked)

    def watch(done: int, total: int) -> None:
        if not quiet and (sys.stderr.isatty() or done == total):
            sys.stderr.write(f"\r{done} of {total} plans made" + ("\n" if done == total else ""))
            sys.stderr.flush()

    jobs = plan_jobs([job for _, job in wanted], out=asked.out, num_processes=asked.workers, watch=watch)
    return [(cell, job) for (cell, _), job in zip(wanted, jobs, strict=True)]


def _once(entries: Sequence[tuple[Cell, PlannedJob]]) -> list[PlannedJob]:
    """Each run once, however many cells share it."""
    return list({job.key: job for _, job in entries}.values())


def _costs(asked: _Asked, jobs: Sequence[PlannedJob]) -> tuple[list[Cost], str]:
    """What similar runs cost: on this machine, else as the records say."""
    known = [(job, finished_seconds(job.folder)) for job in jobs if job.state == "finished"]
    here = [cost_of(job.task, seconds) for job, seconds in known if seconds is not None]
    if here or not asked.records.is_dir():
        return here, f"in {asked.out}"
    return load_timing(asked.records), f"in {asked.records}, perhaps of another machine"


def _check_data(jobs: Sequence[PlannedJob], data_dir: Path | None) -> None:
    """Before hours of training: is all data there? Gets what can be got."""
    from gdpfed.tasks.catalogue import source_of
    from gdpfed.tasks.sources import obtain

    for name in dict.fromkeys(job.task.training.dataset for job in jobs):
        obtain(source_of(name), data_dir=data_dir)


def _train(asked: _Asked, jobs: Sequence[PlannedJob]) -> None:
    """Makes what is not finished."""
    pending = [job for job in jobs if job.state != "finished"]
    if not pending:
        return
    _need_torch()
    _check_data(pending, asked.data_dir)
    processes, threads = cores_of(asked.workers, num_runs=len(pending))
    costs, basis = _costs(asked, jobs)
    tracker = Tracker(jobs, costs, num_cores=processes * threads, threads_each=threads)
    if not asked.as_json:
        out = console()
        out.print(
            f"{len(pending)} of {len(jobs)} runs to make, {processes} at a time with {threads} "
            f"{'thread' if threads == 1 else 'threads'} each: {estimate_in_words(tracker.expected(), basis=basis)}",
            soft_wrap=True,
        )
    batch = Batch(out=asked.out, num_processes=processes, threads_each=threads, data_dir=asked.data_dir)
    try:
        with showing(tracker, quiet=asked.as_json) as show:
            for event in train_jobs(jobs, batch):
                show(event)
    except KeyboardInterrupt:
        sys.stderr.write("stopped: the same command goes on where it was\n")
        raise


def _reproduce(asked: _Asked) -> None:
    out = console()
    if not asked.as_json:
        _introduce(asked)
    entries = _planned(asked, quiet=asked.as_json)
    try:
        _train(asked, _once(entries))
    finally:
        finished = [(cell, job) for cell, job in entries if job.state == "finished"]
        save_records(records_of(finished, scale=asked.scale.name), asked.records)
        save_timing(finished, asked.records)
    records = load_records(asked.records)
    tables = {
        (name, dataset): rows_of(EXPERIMENTS[name], dataset, records, scale=asked.scale)
        for name in asked.names
        for dataset in asked.datasets
    }
    if asked.as_json:
        rows = [_row_as_json(row) for made in tables.values() for row in made]
        print_json({"stamp": _STAMP, "scale": asked.scale.name, "accountant": "rdp", "rows": rows})
        return
    for (name, dataset), made in tables.items():
        _print_table(name, dataset, made)
    out.print(
        "verdict: within the spread if |difference| <= 2 sqrt(std^2 / seeds + paper's std^2 / 3). The paper's cells "
        "come first; all use the RDP accountant, as the paper did.",
        soft_wrap=True,
    )
    out.print(f"{_STAMP}\nruns: {asked.out / 'runs'}; records: {asked.records}", soft_wrap=True)


def _introduce(asked: _Asked) -> None:
    out = console()
    for name in asked.names:
        cells = [cell for dataset in asked.datasets for cell in cells_of(EXPERIMENTS[name], dataset, asked.scale)]
        printed = sum(cell.paper is not None for cell in cells)
        out.print(
            f"{name} on {', '.join(asked.datasets)}: {len(cells)} cells ({printed} of them the paper's) x {asked.seeds} "
            f"{'seed' if asked.seeds == 1 else 'seeds'}",
            soft_wrap=True,
        )
    if asked.scale.name == "smoke":
        text = "scale smoke: few rounds and few clients in each; accuracies show that it works, and no more"
        if "fmnist" in asked.datasets:
            text += "; fmnist is trained on the embedded fmnist-mini images, the same everywhere"
        out.print(text, soft_wrap=True)


def _row_as_json(row: Row) -> dict[str, object]:
    return {
        "experiment": row.experiment,
        "dataset": row.dataset,
        "column": row.column,
        "method": row.label,
        "paper": None if row.paper is None else dataclasses.asdict(row.paper),
        "accuracies": list(row.accuracies),
        "mean": row.mean,
        "std": row.std,
        "difference": row.difference,
        "verdict": row.verdict,
        "reduced": list(row.reduced),
    }


def _print_table(name: str, dataset: str, rows: Sequence[Row]) -> None:
    experiment = EXPERIMENTS[name]
    columns = ["method", *([experiment.varies] if experiment.varies else []), "paper", "ours", "seeds", "difference"]
    shown = []
    for row in rows:
        ours = "" if row.mean is None else f"{row.mean:.2f}" + ("" if row.std is None else f" ± {row.std:.2f}")
        shown.append(
            [
                row.label,
                *([row.column] if experiment.varies else []),
                "" if row.paper is None else f"{row.paper.mean:.2f} ± {row.paper.std:.2f}",
                ours,
                str(len(row.accuracies)),
                "" if row.difference is None else f"{row.difference:+.2f}",
                row.verdict,
            ]
        )
    out = console()
    out.print(table(f"{experiment.title}, {dataset}: test accuracy (%)", [*columns, "verdict"], shown))
    reduced = list(dict.fromkeys("; ".join(row.reduced) for row in rows if row.reduced))
    if len(reduced) == 1:
        out.print(f"not the paper's configuration: {reduced[0]}", soft_wrap=True)


def _command(name: str) -> Callable[..., None]:
    def command(
        datasets: Datasets = "fmnist",
        seeds: Seeds = None,
        scale: ScaleName = "full",
        rounds: Rounds = None,
        participation: Participation = None,
        out: Out = _OUT,
        records: Records = None,
        workers: Workers = None,
        data_dir: DataDir = None,
        as_json: options.Json = False,
    ) -> None:
        names = tuple(EXPERIMENTS) if name == "all" else (name,)
        chosen = Scale(name=scale, num_rounds=rounds, participation=participation)  # type: ignore[arg-type]
        _reproduce(_asked(names, datasets, seeds, chosen, out, records, workers, data_dir, as_json))

    return command


def _status(
    datasets: Datasets = ",".join(PRESETS),
    seeds: Seeds = None,
    scale: ScaleName = "full",
    rounds: Rounds = None,
    participation: Participation = None,
    out: Out = _OUT,
    records: Records = None,
    workers: Workers = None,
    as_json: options.Json = False,
) -> None:
    """What is done, what is missing, and the time it would take; trains nothing."""
    chosen = Scale(name=scale, num_rounds=rounds, participation=participation)  # type: ignore[arg-type]
    asked = _asked(tuple(EXPERIMENTS), datasets, seeds, chosen, out, records, workers, None, as_json)
    entries = _planned(asked, quiet=as_json)
    costs, basis = _costs(asked, _once(entries))
    kept = load_records(asked.records) if asked.records.is_dir() else []
    recorded = {run.key for record in kept for run in record.runs}
    lines = []
    for name in asked.names:
        for dataset in asked.datasets:
            mine = _once([(cell, job) for cell, job in entries if (cell.experiment, cell.dataset) == (name, dataset)])
            missing = [job for job in mine if job.state != "finished"]
            made = estimate([(job.task, 1.0) for job in missing], costs, num_cores=asked.workers)
            lines.append(
                {
                    "experiment": name,
                    "dataset": dataset,
                    "runs": len(mine),
                    "finished": sum(job.state == "finished" for job in mine),
                    "started": sum(job.state == "started" for job in mine),
                    "recorded": sum(job.key in recorded for job in mine),
                    "seconds_missing": made.seconds if missing and not made.num_unknown else None if missing else 0.0,
                }
            )
    jobs = _once(entries)
    left = [job for job in jobs if job.state != "finished"]
    whole = estimate([(job.task, 1.0) for job in left], costs, num_cores=asked.workers)
    if as_json:
        print_json({"scale": scale, "seeds": asked.seeds, "experiments": lines, "runs": len(jobs), "missing": len(left)})
        return
    shown = [
        [
            str(line["experiment"]),
            str(line["dataset"]),
            *(str(line[field]) for field in ("runs", "finished", "started", "recorded")),
            _time(line["seconds_missing"]),
        ]
        for line in lines
    ]
    columns = ["experiment", "data set", "runs", "finished", "started", "recorded", "time for the rest"]
    printer = console()
    printer.print(table(f"{asked.seeds} seeds, scale {scale}, in {out}", columns, shown))
    printer.print(
        f"{len(jobs) - len(left)} of {len(jobs)} different runs are finished (experiments share some); the rest: "
        f"{estimate_in_words(whole, basis=basis) if left else 'nothing'}. recorded: kept in {asked.records}, whether "
        "or not the run's folder is still there.",
        soft_wrap=True,
    )


def _overhead(
    datasets: Datasets = ",".join(PRESETS), records: Records = None, as_json: options.Json = False
) -> None:
    """Seconds for solving the sampling ratios and for Top-k, on this machine, beside the paper's."""
    _need_torch()
    from gdpfed.results.overhead import overhead_table, save_overhead

    rows = overhead_table([name.strip() for name in datasets.split(",")])
    folder = records or (_REPOSITORY_RECORDS if _REPOSITORY_RECORDS.is_dir() else _OUT / "records")
    path = save_overhead(rows, folder)
    if as_json:
        print_json({"unit": "seconds", "rows": [dataclasses.asdict(row) for row in rows], "record": str(path)})
        return
    columns = ["data set", "parameters", "solve, paper", "closed form", "numeric", "Top-k a round, paper", "ours"]
    shown = [
        [
            row.dataset,
            f"{row.parameters:,}",
            f"{row.paper_solve:g}",
            f"{row.solve_closed_form:.2g}",
            f"{row.solve_numeric:.2g}",
            "" if row.paper_topk is None else f"{row.paper_topk:g}",
            f"{row.topk:.2g}",
        ]
        for row in rows
    ]
    out = console()
    out.print(table("Seconds that GDPFed+ adds", columns, shown))
    out.print(
        "ours: median on one core of this machine; the paper's: a server with GPUs. The paper prints no model sizes; "
        f"these are of public code with the models that it names. record: {path}",
        soft_wrap=True,
    )


def _need_torch() -> None:
    if importlib.util.find_spec("torch") is None:
        raise MissingExtraError(package="torch", extra="torch", purpose="training")


def _time(seconds: object) -> str:
    if seconds is None:
        return "not known"
    return in_words(seconds) if isinstance(seconds, float) and seconds else ""


def add_training_commands(app: typer.Typer) -> None:
    """Adds a command for each experiment, and `all` and `status`."""
    for name, experiment in EXPERIMENTS.items():
        varied = f", varied: {experiment.varies}" if experiment.varies else ""
        app.command(name, help=f"{experiment.title}{varied}. Trains; interrupted, the same command goes on.")(
            _command(name)
        )
    app.command("all", help="All experiments that train, the most useful first, the paper's own cells before ours.")(
        _command("all")
    )
    app.command("overhead")(_overhead)
    app.command("status")(_status)
