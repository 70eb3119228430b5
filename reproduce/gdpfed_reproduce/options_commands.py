"""What the commands of `gdpfed reproduce` that train are asked: the options, each declared once, and what they come to.

Place: options -> cells and jobs.
"""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from gdpfed.errors import InputError, expect_word, suggestion
from gdpfed.tasks.task import PRESETS, Task
from gdpfed_reproduce.batch import RESULTS_VERSION, Job, PlannedJob, finished_seconds
from gdpfed_reproduce.estimate import Cost, cost_of, similarity
from gdpfed_reproduce.experiments import EXPERIMENTS, Cell, Scale, cells_of, experiment_of
from gdpfed_reproduce.records import CellRecord, config_of, load_records, load_timing
from gdpfed_reproduce.without_training import check_datasets

__all__ = [
    "ALL",
    "ORDER",
    "OUT",
    "Asked",
    "Background",
    "Columns",
    "DataDir",
    "Datasets",
    "Methods",
    "Missing",
    "Order",
    "Out",
    "Participation",
    "Records",
    "Rounds",
    "ScaleName",
    "Seeds",
    "Workers",
    "asked_of",
    "costs_of",
    "in_words_of_seeds",
    "recorded_runs",
    "records_folder",
    "scale_of",
    "settled",
    "wanted_of",
]  # fmt: skip

ALL = ",".join(PRESETS)
_REPOSITORY_RECORDS = Path("reproduce") / "results"
_MOST = 1000
_SEEDS = {"full": "3", "smoke": "1"}
ORDER = "experiment,seed,dataset,method,column"

Datasets = Annotated[str, typer.Option("--datasets", help="Data sets, separated by commas.")]
Methods = Annotated[
    str | None, typer.Option("--methods", help="Methods of the table, separated by commas. Default: all of them.")
]
Columns = Annotated[
    str | None, typer.Option("--columns", help="Columns of the table, separated by ';'. Default: all of them.")
]
Seeds = Annotated[
    str | None,
    typer.Option(
        "--seeds",
        help="How many seeds, 3 for 1 to 3; or which, with commas: '2,3', or '2,'. Default: 3, as in the paper; 1 for "
        "smoke.",
    ),
]
ScaleName = Annotated[
    str,
    typer.Option(
        "--scale",
        help="'paper': the paper's configuration. 'smoke': few rounds and clients, FMNIST on the embedded images; "
        "shows that everything works, and no more.",
    ),
]
Order = Annotated[
    str,
    typer.Option(
        "--order",
        help="What changes slowest comes first, of experiment, dataset, method, column and seed; each in the order in "
        "which it is named. Cells that are not the paper's come after all others.",
    ),
]
Missing = Annotated[bool, typer.Option("--missing", help="Leave out runs that are recorded already.")]
Background = Annotated[
    bool,
    typer.Option("--background", help="Give way to other work: lowest priority, and a run fewer while cores are busy."),
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
        help="Folder of the small records. Default: reproduce/results where it exists and --scale is paper, "
        "else in --out.",
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
    seeds: tuple[int, ...]
    scale: Scale
    out: Path
    records: Path
    workers: int
    data_dir: Path | None
    as_json: bool
    order: tuple[str, ...] = tuple(ORDER.split(","))
    only_missing: bool = False
    in_background: bool = False


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
    seeds: str | None,
    scale: Scale,
    out: Path,
    records: Path | None,
    workers: int | None,
    as_json: bool,
    data_dir: Path | None = None,
    order: str = ORDER,
    only_missing: bool = False,
    in_background: bool = False,
) -> Asked:
    """Checks the options."""
    cores = (os.cpu_count() or 1) if workers is None else workers
    if not 1 <= cores <= _MOST:
        raise InputError(f"expected --workers from 1 to {_MOST}, got --workers {cores}")
    experiments = [experiment_of(name) for name in names]
    labels = dict.fromkeys(method.label for experiment in experiments for method in experiment.methods)
    titles = dict.fromkeys(column for experiment in experiments for column in experiment.columns if column)
    return Asked(
        names=tuple(experiment.name for experiment in experiments),
        methods=_chosen("--methods", methods, labels, ","),
        columns=_chosen("--columns", columns, titles, ";"),
        datasets=check_datasets([name.strip() for name in datasets.split(",")]),
        seeds=_seeds_of(_SEEDS[scale.name] if seeds is None else seeds),
        scale=scale,
        out=out,
        records=records_folder(records, out=out, scale=scale.name),
        workers=cores,
        data_dir=data_dir,
        as_json=as_json,
        order=_order_of(order),
        only_missing=only_missing,
        in_background=in_background,
    )


def _seeds_of(stated: str) -> tuple[int, ...]:
    """A number alone says how many; with a comma, which."""
    parts = stated.removesuffix(",").split(",")
    try:
        numbers = tuple(int(part) for part in parts)
    except ValueError:
        numbers = ()
    if not numbers or not all(1 <= number <= _MOST for number in numbers) or len(set(numbers)) < len(numbers):
        raise InputError(
            f"expected --seeds as how many, from 1 to {_MOST}, or as which, such as 2,3 or 2,; got --seeds {stated}"
        )
    return numbers if "," in stated else tuple(range(1, numbers[0] + 1))


def scale_of(name: str, rounds: int | None = None, participation: float | None = None) -> Scale:
    """As `--scale` names it; records call the paper's ``full``."""
    expect_word("--scale among", name, ("paper", "smoke"))
    return Scale(name="full" if name == "paper" else "smoke", num_rounds=rounds, participation=participation)


def in_words_of_seeds(seeds: Sequence[int]) -> str:
    """How many, or which."""
    if list(seeds) == list(range(1, len(seeds) + 1)):
        return "1 seed" if len(seeds) == 1 else f"{len(seeds)} seeds"
    return f"{'seed' if len(seeds) == 1 else 'seeds'} {', '.join(map(str, seeds))}"


def _order_of(stated: str) -> tuple[str, ...]:
    """The named ones first, the others after them as usual."""
    usual = tuple(ORDER.split(","))
    named = tuple(part.strip() for part in stated.split(","))
    for part in named:
        if part not in usual or named.count(part) > 1:
            raise InputError(
                f"expected --order among {', '.join(usual)}, each once, got {part!r}{suggestion(part, usual)}"
            )
    return (*named, *(part for part in usual if part not in named))


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
    """Every cell with every seed: the paper's own first, then in the order that was asked for."""
    wanted = []
    recorded = recorded_runs(asked.records) if asked.only_missing else set()
    for experiment, name in enumerate(asked.names):
        methods = asked.methods or [method.label for method in EXPERIMENTS[name].methods]
        columns = asked.columns or list(EXPERIMENTS[name].columns)
        for dataset, of_data in enumerate(asked.datasets):
            for cell in cells_of(EXPERIMENTS[name], of_data, asked.scale):
                if not _is_chosen(asked, cell):
                    continue
                for seed in asked.seeds:
                    weights = f"-{cell.method.weights}" if cell.method.weights else ""
                    job = Job(
                        name=f"{of_data}-{cell.task.settings.method}{weights}-s{seed}",
                        task=cell.task,
                        seed=seed,
                        purpose=f"{name} {cell.column}" if cell.column else "",
                    )
                    places = {
                        "experiment": experiment,
                        "seed": asked.seeds.index(seed),
                        "dataset": dataset,
                        "method": methods.index(cell.method.label),
                        "column": columns.index(cell.column),
                    }
                    key = (cell.paper is None, *(places[part] for part in asked.order))
                    if settled(cell.task, seed) not in recorded:
                        wanted.append((key, cell, job))
    return [(cell, job) for _, cell, job in sorted(wanted, key=lambda entry: entry[0])]


def settled(task: Task, seed: int) -> str:
    """By what a record's run is known again, whatever it was planned to."""
    return _settled(config_of(task), seed)


def _settled(config: Mapping[str, object], seed: int) -> str:
    return json.dumps([config, seed], sort_keys=True)


def recorded_runs(records: Path) -> set[str]:
    """All runs that tables show, as `settled` names them: where there are records of several plans, of one of them."""
    kept = load_records(records) if records.is_dir() else []
    best: dict[str, CellRecord] = {}
    for record in kept:
        if record.results_version == RESULTS_VERSION:
            cell = json.dumps(record.config, sort_keys=True)
            best[cell] = max(best.get(cell, record), record, key=lambda each: len(each.runs))
    return {_settled(record.config, run.seed) for record in best.values() for run in record.runs}


def costs_of(asked: Asked, jobs: Sequence[PlannedJob], wanted: Iterable[Task]) -> tuple[list[Cost], str]:
    """What runs like ``wanted`` cost: by those of ``jobs`` that are finished here, else as the records say."""
    finished = [(job, finished_seconds(job.folder)) for job in jobs if job.state == "finished"]
    here = [cost_of(job.task, seconds) for job, seconds in finished if seconds is not None]
    sought = {similarity(task) for task in wanted} - {cost.similarity for cost in here}
    recorded = load_timing(asked.records) if asked.records.is_dir() else []
    others = [cost for cost in recorded if cost.similarity in sought]
    places = [f"in {asked.out}"] if here or not others else []
    if others:
        places.append(f"in {asked.records}, perhaps of another machine")
    return [*here, *others], " or ".join(places)
