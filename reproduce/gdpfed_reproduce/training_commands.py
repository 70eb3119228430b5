"""`gdpfed reproduce main`, `convergence`, ..., `all`: the paper's experiments that train.

Place: cells -> jobs -> batch -> records -> tables. The same command goes on where it was, however it ended.
"""

import dataclasses
import importlib.util
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import typer

from gdpfed.cli import options
from gdpfed.cli.show import console, print_json, table
from gdpfed.config import is_reference
from gdpfed.errors import MissingExtraError
from gdpfed.runs.stamp import STAMP
from gdpfed_reproduce.batch import Batch, Job, PlannedJob, cores_of, plan_jobs, train_jobs
from gdpfed_reproduce.batch_progress import Tracker, estimate_in_words, showing
from gdpfed_reproduce.experiments import EXPERIMENTS, Cell, cells_of
from gdpfed_reproduce.options_commands import (
    ORDER,
    OUT,
    Asked,
    Background,
    Columns,
    DataDir,
    Datasets,
    Methods,
    Missing,
    Order,
    Out,
    Participation,
    Records,
    Rounds,
    ScaleName,
    Seeds,
    Workers,
    asked_of,
    costs_of,
    in_words_of_seeds,
    scale_of,
    wanted_of,
)
from gdpfed_reproduce.records import load_records, records_locked, records_of, save_records, save_timing
from gdpfed_reproduce.verdicts import ComparedRow, rows_of

__all__ = ["add_training_commands", "make_runs", "need_torch"]

# Seconds between two savings of the records.
_KEEP_EVERY = 60


def _planned(asked: Asked, wanted: Sequence[tuple[Cell, Job]], *, quiet: bool) -> list[tuple[Cell, PlannedJob]]:

    def watch(done: int, total: int) -> None:
        if not quiet and (sys.stderr.isatty() or done == total):
            sys.stderr.write(f"\r{done} of {total} plans made" + ("\n" if done == total else ""))
            sys.stderr.flush()

    jobs = plan_jobs(
        [job for _, job in wanted],
        out=asked.out,
        num_processes=asked.workers,
        in_background=asked.in_background,
        watch=watch,
    )
    return [(cell, job) for (cell, _), job in zip(wanted, jobs, strict=True)]


def _once(entries: Sequence[tuple[Cell, PlannedJob]]) -> list[PlannedJob]:
    """Each run once, however many cells share it."""
    once: dict[str, PlannedJob] = {}
    for _, job in entries:
        once.setdefault(job.key, job)
    return list(once.values())


def _check_data(jobs: Sequence[PlannedJob], data_dir: Path | None) -> None:
    """Before hours of training: is all data there? Gets what can be got."""
    from gdpfed.tasks.catalogue import source_of
    from gdpfed.tasks.sources import obtain

    # Functions are imported, not got.
    for name in dict.fromkeys(job.task.training.dataset for job in jobs if not is_reference(job.task.training.dataset)):
        obtain(source_of(name), data_dir=data_dir)


def _train(asked: Asked, jobs: Sequence[PlannedJob], keep: Callable[[], None]) -> None:
    """Makes what is not finished; calls ``keep`` now and then, so that long batches leave records on the way."""
    pending = [job for job in jobs if job.state != "finished"]
    if not pending:
        return
    need_torch()
    _check_data(pending, asked.data_dir)
    processes, threads = cores_of(asked.workers, num_runs=len(pending))
    costs, basis = costs_of(asked, jobs, [job.task for job in jobs])
    tracker = Tracker(jobs, costs, num_cores=processes * threads, threads_each=threads)
    if not asked.as_json:
        out = console()
        out.print(
            f"{len(pending)} of {len(jobs)} runs to make, {processes} at a time with {threads} "
            f"{'thread' if threads == 1 else 'threads'} each: {estimate_in_words(tracker.expected(), basis=basis)}"
            f"{', if nothing else keeps the cores busy' if asked.in_background else ''}",
            soft_wrap=True,
        )
    batch = Batch(
        out=asked.out,
        num_processes=processes,
        threads_each=threads,
        data_dir=asked.data_dir,
        in_background=asked.in_background,
    )
    try:
        with showing(tracker, quiet=asked.as_json) as show:
            kept = time.monotonic()
            for event in train_jobs(jobs, batch):
                show(event)
                if event.kind == "finished" and time.monotonic() > kept + _KEEP_EVERY:
                    keep()
                    kept = time.monotonic()
    except KeyboardInterrupt:
        sys.stderr.write("stopped: the same command goes on where it was\n")
        raise


def _reproduce(asked: Asked) -> None:
    out = console()
    if not asked.as_json:
        _introduce(asked)
    make_runs(asked, wanted_of(asked))
    records = load_records(asked.records)
    tables = {
        (name, dataset): rows_of(EXPERIMENTS[name], dataset, records, scale=asked.scale)
        for name in asked.names
        for dataset in asked.datasets
    }
    if asked.as_json:
        rows = [_row_as_json(row) for made in tables.values() for row in made]
        print_json({"stamp": STAMP, "scale": asked.scale.name, "accountant": "rdp", "rows": rows})
        return
    for (name, dataset), made in tables.items():
        _print_table(name, dataset, made)
    out.print(
        "verdict: within the spread if |difference| <= 2 sqrt(std^2 / seeds + paper's std^2 / 3). The paper's cells "
        "come first; all use the RDP accountant, as the paper did.",
        soft_wrap=True,
    )
    out.print(f"{STAMP}\nruns: {asked.out / 'runs'}; records: {asked.records}", soft_wrap=True)


def make_runs(asked: Asked, wanted: Sequence[tuple[Cell, Job]]) -> None:
    """Plans and trains what is not finished, and keeps the records, also on the way."""
    entries = _planned(asked, wanted, quiet=asked.as_json)

    def keep() -> None:
        finished = [(cell, job) for cell, job in entries if job.state == "finished"]
        with records_locked(asked.records):
            save_records(records_of(finished, scale=asked.scale.name), asked.records)
            save_timing(finished, asked.records)

    try:
        _train(asked, _once(entries), keep)
    finally:
        keep()


def _introduce(asked: Asked) -> None:
    out = console()
    for name in asked.names:
        cells = [cell for dataset in asked.datasets for cell in cells_of(EXPERIMENTS[name], dataset, asked.scale)]
        printed = sum(cell.paper is not None for cell in cells)
        out.print(
            f"{name} on {', '.join(asked.datasets)}: {len(cells)} cells ({printed} of them the paper's) x "
            f"{in_words_of_seeds(asked.seeds)}",
            soft_wrap=True,
        )
    if asked.scale.name == "smoke":
        text = "scale smoke: few rounds and few clients in each; accuracies show that it works, and no more"
        if "fmnist" in asked.datasets:
            text += "; fmnist is trained on the embedded fmnist-mini images, the same everywhere"
        out.print(text, soft_wrap=True)


def _row_as_json(row: ComparedRow) -> dict[str, object]:
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


def _print_table(name: str, dataset: str, rows: Sequence[ComparedRow]) -> None:
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
        methods: Methods = None,
        columns: Columns = None,
        seeds: Seeds = None,
        order: Order = ORDER,
        missing: Missing = False,
        scale: ScaleName = "paper",
        rounds: Rounds = None,
        participation: Participation = None,
        out: Out = OUT,
        records: Records = None,
        workers: Workers = None,
        background: Background = False,
        data_dir: DataDir = None,
        as_json: options.Json = False,
    ) -> None:
        names = tuple(EXPERIMENTS) if name == "all" else (name,)
        _reproduce(
            asked_of(
                names,
                datasets=datasets,
                methods=methods,
                columns=columns,
                seeds=seeds,
                order=order,
                only_missing=missing,
                scale=scale_of(scale, rounds, participation),
                out=out,
                records=records,
                workers=workers,
                in_background=background,
                data_dir=data_dir,
                as_json=as_json,
            )
        )

    return command


def need_torch() -> None:
    """Says how to get torch where it is missing, without importing it."""
    if importlib.util.find_spec("torch") is None:
        raise MissingExtraError(package="torch", extra="torch", purpose="training")


def add_training_commands(app: typer.Typer) -> None:
    """Adds a command for each experiment, and `all`."""
    for name, experiment in EXPERIMENTS.items():
        varied = f", varied: {experiment.varies}" if experiment.varies else ""
        app.command(name, help=f"{experiment.title}{varied}. Trains; interrupted, the same command goes on.")(
            _command(name)
        )
    app.command("all", help="All experiments that train, the most useful first, the paper's own cells before ours.")(
        _command("all")
    )
