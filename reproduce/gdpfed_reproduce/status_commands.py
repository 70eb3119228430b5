"""`gdpfed reproduce status` and `overhead`: what is done and what is missing, and two times beside the paper's.

Place: run folders and records -> tables. Trains nothing.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from gdpfed.cli import options
from gdpfed.cli.show import console, print_json, table
from gdpfed.tasks.task import Task
from gdpfed_reproduce.batch import found_jobs
from gdpfed_reproduce.batch_progress import estimate_in_words
from gdpfed_reproduce.estimate import Cost, estimate, in_words
from gdpfed_reproduce.experiments import EXPERIMENTS
from gdpfed_reproduce.options_commands import (
    ALL,
    OUT,
    Datasets,
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
    recorded_runs,
    records_folder,
    scale_of,
    settled,
    wanted_of,
)
from gdpfed_reproduce.training_commands import need_torch

__all__ = ["overhead", "status"]


def status(
    datasets: Datasets = ALL,
    seeds: Seeds = None,
    scale: ScaleName = "paper",
    rounds: Rounds = None,
    participation: Participation = None,
    out: Out = OUT,
    records: Records = None,
    workers: Workers = None,
    as_json: options.Json = False,
) -> None:
    """What is done, what is missing, and the time it would take; plans and trains nothing."""
    asked = asked_of(
        tuple(EXPERIMENTS),
        datasets=datasets,
        seeds=seeds,
        scale=scale_of(scale, rounds, participation),
        out=out,
        records=records,
        workers=workers,
        as_json=as_json,
    )
    wanted = wanted_of(asked)
    found = found_jobs([job for _, job in wanted], out=asked.out)
    in_folders = {job.key: job for job in found if job is not None}
    costs, basis = costs_of(asked, list(in_folders.values()), [job.task for _, job in wanted])
    recorded = recorded_runs(asked.records)
    by_table: dict[tuple[str, str], dict[str, _Standing]] = {}
    for (cell, job), here in zip(wanted, found, strict=True):
        identity = settled(cell.task, job.seed)
        standing = _Standing(task=cell.task, state=here.state if here else "missing", is_recorded=identity in recorded)
        by_table.setdefault((cell.experiment, cell.dataset), {})[identity] = standing
    lines = [
        {"experiment": name, "dataset": dataset, **_summary(list(runs.values()), costs, asked.workers)}
        for (name, dataset), runs in sorted(by_table.items(), key=lambda entry: asked.names.index(entry[0][0]))
    ]
    everything = {identity: standing for runs in by_table.values() for identity, standing in runs.items()}
    left = [(standing.task, 1.0) for standing in everything.values() if standing.is_missing]
    if as_json:
        counts = {"runs": len(everything), "missing": len(left)}
        print_json({"scale": scale, "seeds": list(asked.seeds), "experiments": lines, **counts})
        return
    columns = ["runs", "finished", "started", "recorded"]
    shown = [
        [
            str(line["experiment"]),
            str(line["dataset"]),
            *(str(line[name]) for name in [*columns, "missing"]),
            _time(line["seconds_known"], line["runs_not_known"]),
        ]
        for line in lines
    ]
    printer = console()
    heading = f"{in_words_of_seeds(asked.seeds)}, scale {scale}, in {out}"
    printer.print(table(heading, ["experiment", "data set", *columns, "missing", "time for them"], shown))
    rest = estimate_in_words(estimate(left, costs, num_cores=asked.workers), basis=basis) if left else "nothing"
    printer.print(
        f"{len(everything) - len(left)} of {len(everything)} different runs are there (experiments share some); the "
        f"missing ones: {rest}. recorded: kept in {asked.records}, whether or not the run's folder is still in {out}. "
        f"--missing makes what is missing and no more.",
        soft_wrap=True,
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class _Standing:
    """How far one run is."""

    task: Task
    state: str
    is_recorded: bool

    @property
    def is_missing(self) -> bool:
        """Neither here nor in the records."""
        return self.state != "finished" and not self.is_recorded


def _summary(runs: Sequence[_Standing], costs: Sequence[Cost], num_cores: int) -> dict[str, object]:
    missing = [(run.task, 1.0) for run in runs if run.is_missing]
    made = estimate(missing, costs, num_cores=num_cores)
    return {
        "runs": len(runs),
        "missing": len(missing),
        "finished": sum(run.state == "finished" for run in runs),
        "started": sum(run.state == "started" for run in runs),
        "recorded": sum(run.is_recorded for run in runs),
        "seconds_known": made.seconds,
        "runs_not_known": made.num_unknown,
    }


def overhead(datasets: Datasets = ALL, records: Records = None, as_json: options.Json = False) -> None:
    """Seconds for solving the sampling ratios and for Top-k, on this machine, beside the paper's."""
    need_torch()
    from gdpfed_reproduce.overhead import overhead_table, save_overhead

    rows = overhead_table([name.strip() for name in datasets.split(",")])
    path = save_overhead(rows, records_folder(records, out=OUT))
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


def _time(seconds: object, unknown: object) -> str:
    """What is known, and how many runs it leaves out."""
    known = [in_words(seconds)] if isinstance(seconds, float) and seconds else []
    return " + ".join([*known, *([f"{unknown} runs not known"] if unknown else [])])
