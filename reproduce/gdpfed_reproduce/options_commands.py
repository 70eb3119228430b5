"""What the commands of `gdpfed reproduce` that train are asked: the options, each declared once, and what they come to.

Place: options -> cells and jobs.
"""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from gdpfed.errors import InputError, suggestion
from gdpfed.tasks.task import PRESETS
from gdpfed_reproduce.batch import Job, PlannedJob, finished_seconds
from gdpfed_reproduce.estimate import Cost, cost_of
from gdpfed_reproduce.experiments import EXPERIMENTS, Cell, Scale, cells_of, experiment_of
from gdpfed_reproduce.records import load_timing
from gdpfed_reproduce.without_training import check_datasets

__all__ = [
    "ALL", "OUT", "Asked", "Columns", "DataDir", "Datasets", "Methods", "Out", "Participation", "Records", "Rounds",
    "ScaleName", "Seeds", "Workers", "asked_of", "costs_of", "records_folder", "wanted_of",
]  # fmt: skip

ALL = ",".join(PRESETS)
_REPOSITORY_RECORDS = Path("reproduce") / "results"
_MOST = 1000
_SEEDS = {"full": 3, "smoke": 1}

Datasets = Annotated[str, typer.Option("--datasets", help="Data sets, separated by commas.")]
Methods = Annotated[
    str | None, typer.Option("--methods", help="Methods of the table, separated by commas. Default: all of them.")
]
Columns = Annotated[
    str | None, typer.Option("--columns", help="Columns of the table, separated by ';'. Default: all of them.")
]
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
OUT = Path("gdpfed-results") / "reproduce"


@dataclass(frozen=True, kw_only=True, eq=False)
class Asked:
    """What the options come to."""

    names: tuple[str, ...]
    datasets: tuple[str, ...]
    methods: tuple[str, ...] | None
    columns: tuple[str, ...] | None
    seeds: int
    scale: Scale
    out: Path
    records: Path
    workers: int
    data_dir: Path | None
    as_json: bool


def records_folder(stated: Path | None, *, out: Path, scale: str = "full") -> Path:
    """Where records are kept: in the repository, when the command runs there at full scale."""
    in_repository = _REPOSITORY_RECORDS.is_dir() and scale == "full"
    return stated or (_REPOSITORY_RECORDS if in_repository else out / "records")


def asked_of(
    names: Sequence[str],
    *,
    datasets: str,
    methods: str | None = None,
    columns: str | None = None,
    seeds: int | None,
    scale: Scale,
    out: Path,
    records: Path | None,
    workers: int | None,
    as_json: bool,
    data_dir: Path | None = None,
) -> Asked:
    """Checks the options."""
    count = _SEEDS[scale.name] if seeds is None else seeds
    cores = (os.cpu_count() or 1) if workers is None else workers
    for option, value in (("--seeds", count), ("--workers", cores)):
        if not 1 <= value <= _MOST:
            raise InputError(f"expected {option} from 1 to {_MOST}, got {option} {value}")
    experiments = [experiment_of(name) for name in names]
    labels = dict.fromkeys(method.label for experiment in experiments for method in experiment.methods)
    titles = dict.fromkeys(column for experiment in experiments for column in experiment.columns if column)
    return Asked(
        names=tuple(experiment.name for experiment in experiments),
        methods=_chosen("--methods", methods, labels, ","),
        columns=_chosen("--columns", columns, titles, ";"),
        datasets=check_datasets([name.strip() for name in datasets.split(",")]),
        seeds=count,
        scale=scale,
        out=out,
        records=records_folder(records, out=out, scale=scale.name),
        workers=cores,
        data_dir=data_dir,
        as_json=as_json,
    )


def _chosen(option: str, stated: str | None, known: Iterable[str], separator: str) -> tuple[str, ...] | None:
    if stated is None:
        return None
    chosen = tuple(part.strip() for part in stated.split(separator))
    names = tuple(known)
    for part in chosen:
        if part not in names:
            raise InputError(f"expected {option} among {', '.join(names)}, got {part!r}{suggestion(part, names)}")
    return chosen


def _is_chosen(asked: Asked, cell: Cell) -> bool:
    right_method = asked.methods is None or cell.method.label in asked.methods
    return right_method and (asked.columns is None or cell.column in asked.columns)


def wanted_of(asked: Asked) -> list[tuple[Cell, Job]]:
    """Every cell with every seed: the paper's own first, a whole table before its next seed."""
    wanted = []
    for place, name in enumerate(asked.names):
        for dataset in asked.datasets:
            for cell in cells_of(EXPERIMENTS[name], dataset, asked.scale):
                if not _is_chosen(asked, cell):
                    continue
                for seed in range(1, asked.seeds + 1):
                    weights = f"-{cell.method.weights}" if cell.method.weights else ""
                    job = Job(
                        name=f"{dataset}-{cell.task.settings.method}{weights}-s{seed}",
                        task=cell.task,
                        seed=seed,
                        purpose=f"{name} {cell.column}" if cell.column else "",
                    )
                    wanted.append(((cell.paper is None, place, seed), cell, job))
    return [(cell, job) for _, cell, job in sorted(wanted, key=lambda entry: entry[0])]


def costs_of(asked: Asked, jobs: Sequence[PlannedJob]) -> tuple[list[Cost], str]:
    """What similar runs cost: on this machine, else as the records say."""
    known = [(job, finished_seconds(job.folder)) for job in jobs if job.state == "finished"]
    here = [cost_of(job.task, seconds) for job, seconds in known if seconds is not None]
    if here or not asked.records.is_dir():
        return here, f"in {asked.out}"
    return load_timing(asked.records), f"in {asked.records}, perhaps of another machine"
