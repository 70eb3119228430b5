"""Better than the paper at its own budgets: ablations of what `pooled` is made of, as cells that are trained.

Place: presets -> cells -> runs, beside `experiments.py`, whose tables are the paper's. A table here is rows on one
population; a row changes the task. All of it is trained with the same seeds, so differences are paired.

Settings were chosen on a validation split of the training images that no client had, in tables of their own (`tuning`),
with a seed that no other table has. `CNN` and `FEATURES` are what was chosen.

Guarantees (tests of the same name):
  every_row_is_the_papers_configuration   the same clients, rounds, mean participation and delta in a whole table.
  tuning_never_sees_the_test_set          every tuning cell holds out validation images, and no other cell does.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gdpfed.errors import InputError, suggestion
from gdpfed.privacy.budgets import parse_compact
from gdpfed.results.experiments import Cell, Method
from gdpfed.tasks.task import Task, load_task

__all__ = [
    "CNN", "FEATURES", "POPULATIONS", "SEEDS", "TABLES", "TUNING", "TUNING_SEED", "VALIDATION", "Recipe", "Table",
    "cells_of_table", "table_of",
]  # fmt: skip

SEEDS = 5
TUNING = ("tuning-features", "tuning-cnn")
TUNING_SEED = 11
VALIDATION = 10_000

Change = Callable[[Task], Task]


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What was chosen for a model: local learning rate, clip norm, and what the server does with released sums."""

    model: str
    learning_rate: float
    clip_norm: float
    server_learning_rate: float = 1.0
    averaging: float = 0.0

    @property
    def server(self) -> dict[str, float]:
        """The server's part, which costs no privacy."""
        return {"server_learning_rate": self.server_learning_rate, "averaging": self.averaging}

    def on(self, task: Task, method: str = "pooled", **changes: Any) -> Task:
        """The task with this model and these settings."""
        own = {"learning_rate": self.learning_rate, "clip_norm": self.clip_norm, **self.server}
        training = dataclasses.replace(task.training, model=self.model, evaluate_every=task.settings.num_rounds)
        return _set(dataclasses.replace(task, training=training), method=method, **{**own, **changes})


CNN = Recipe(model="cnn2", learning_rate=0.1, clip_norm=0.7, server_learning_rate=3.0, averaging=0.85)
FEATURES = Recipe(
    model="scattering-linear", learning_rate=0.02, clip_norm=0.15, server_learning_rate=3.0, averaging=0.8
)
# What the server does without us, at the preset's clip norm for its CNN. Features have no preset: there the clip norm
# is ours, since at the CNN's all would be noise.
_PLAIN_CNN = Recipe(model="cnn2", learning_rate=0.1, clip_norm=1.5)
_PLAIN_FEATURES = dataclasses.replace(FEATURES, server_learning_rate=1.0, averaging=0.0)


@dataclass(frozen=True, kw_only=True, eq=False)
class Table:
    """Rows on a population; ``seeds`` are what it is trained with, ``baseline`` the row that ours is held against."""

    name: str
    title: str
    population: str
    rows: Mapping[str, Change]
    seeds: Sequence[int]
    datasets: Sequence[str] = ("fmnist",)
    baseline: str = "gdpfed+ (the paper: RDP)"


def _set(task: Task, **settings: Any) -> Task:
    return dataclasses.replace(task, settings=dataclasses.replace(task.settings, **settings))


def _training(task: Task, **changes: Any) -> Task:
    return dataclasses.replace(task, training=dataclasses.replace(task.training, **changes))


def _budgets(text: str) -> Change:
    def change(task: Task) -> Task:
        # FedAvg knows no budgets: it is one set of runs for all of them.
        if task.settings.method == "fedavg":
            return task
        return dataclasses.replace(task, budgets=parse_compact(text), budgets_source=text)

    return change


# Who the clients are, in words and as a change of FMNIST's preset.
POPULATIONS: Mapping[str, tuple[str, Change]] = {
    "paper": ("the paper's: 2,000 clients each at 0.5, 1.5 and 3", lambda task: task),
    "half": ("half the budgets: 0.25, 0.75 and 1.5", _budgets("2000@0.25,2000@0.75,2000@1.5")),
    "strict": ("3:2:1, most clients strict", _budgets("3000@0.5,2000@1.5,1000@3")),
    "dirichlet": (
        "Dirichlet 0.3, budgets dealt at random",
        lambda task: _training(task, partition="dirichlet", concentration=0.3),
    ),
    "tied": (
        "Dirichlet 0.3, strict clients with small labels",
        lambda task: _training(task, partition="dirichlet", concentration=0.3, group_skew=0.5),
    ),
}


def _one(recipe: Recipe, method: str = "pooled", **changes: Any) -> Change:
    return lambda task: recipe.on(task, method, **changes)


def _compared(recipe: Recipe, plain: Recipe) -> dict[str, Change]:
    """Without privacy, the paper's method, and ours."""
    return {
        "ours": _one(recipe),
        "fedavg, same server": _one(recipe, "fedavg"),
        "gdpfed+ (the paper: RDP)": _one(plain, "gdpfed+", accountant="rdp"),
    }


def _ablation(recipe: Recipe, plain: Recipe) -> dict[str, Change]:
    """Each ingredient added alone to the paper's method, and taken alone from ours."""
    return {
        **_compared(recipe, plain),
        "fedavg, plain server": _one(plain, "fedavg"),
        "fedavg, half our step": _one(recipe, "fedavg", server_learning_rate=recipe.server_learning_rate / 2),
        "gdpfed+ with PLD": _one(plain, "gdpfed+"),
        "gdpfed+ (RDP) with our clip and server": _one(recipe, "gdpfed+", accountant="rdp"),
        "pooled (PLD), plain server": _one(plain),
        "ours with RDP": _one(recipe, accountant="rdp"),
        "ours without pooling (gdpfed-opc, inverse variance)": _one(recipe, "gdpfed-opc", weights="inverse-variance"),
        "ours with uniform rates": _one(recipe, rates="uniform"),
        "ours without averaging": _one(recipe, averaging=0.0),
        "ours with step 1": _one(recipe, server_learning_rate=1.0),
    }


def _fairness(recipe: Recipe, plain: Recipe) -> dict[str, Change]:
    return {
        **_compared(recipe, plain),
        "ours, no rate below half the mean": _one(recipe, fairness_floor=0.5),
        "ours with uniform rates": _one(recipe, rates="uniform"),
    }


def _tuning(recipe: Recipe, tried: Sequence[Mapping[str, Any]]) -> dict[str, Change]:
    rows = {}
    for settings in tried:
        label = ", ".join(f"{name} {value:g}" for name, value in settings.items())
        rows[label] = _held_out(_one(recipe, **settings))
    return rows


def _held_out(change: Change) -> Change:
    return lambda task: _training(change(task), validation=VALIDATION)


def _tried(*rows: tuple[float, float, float, float]) -> list[dict[str, Any]]:
    names = ("learning_rate", "clip_norm", "server_learning_rate", "averaging")
    return [dict(zip(names, row, strict=True)) for row in rows]


_TRIED_CNN = _tried(
    (0.1, 1.5, 1, 0),
    (0.1, 1.5, 1.5, 0.85),
    (0.1, 1.0, 2, 0.85),
    (0.1, 0.7, 3, 0.85),
)
_TRIED_FEATURES = _tried(
    (0.02, 0.2, 1, 0),
    (0.02, 0.2, 2, 0),
    (0.02, 0.2, 2, 0.8),
    (0.02, 0.2, 3, 0.8),
    (0.02, 0.15, 3, 0.8),
)


def _tables() -> dict[str, Table]:
    everyone = tuple(range(1, SEEDS + 1))
    tables = [
        Table(
            name="tuning-features",
            title="Choice of settings: scattering features, validation images",
            population="paper",
            rows=_tuning(FEATURES, _TRIED_FEATURES),
            seeds=(TUNING_SEED,),
        ),
        Table(
            name="tuning-cnn",
            title="Choice of settings: the preset's CNN, validation images",
            population="paper",
            rows=_tuning(CNN, _TRIED_CNN),
            seeds=(TUNING_SEED,),
        ),
        Table(
            name="features",
            title="A model of our choice: scattering features, linear head",
            population="paper",
            rows=_ablation(FEATURES, _PLAIN_FEATURES),
            seeds=everyone,
        ),
        Table(
            name="cnn",
            title="The preset's own CNN",
            population="paper",
            rows=_ablation(CNN, _PLAIN_CNN),
            seeds=everyone,
        ),
    ]
    for population in ("half", "strict", "dirichlet", "tied"):
        rule = _fairness if population == "tied" else _compared
        for name, words, recipe, plain in (
            ("features", "Scattering features", FEATURES, _PLAIN_FEATURES),
            ("cnn", "The preset's CNN", CNN, _PLAIN_CNN),
        ):
            title = f"{words}: {POPULATIONS[population][0]}"
            rows = rule(recipe, plain)
            tables.append(
                Table(name=f"{name}-{population}", title=title, population=population, rows=rows, seeds=everyone)
            )
    return {table.name: table for table in tables}


TABLES: Mapping[str, Table] = _tables()


def table_of(name: str) -> Table:
    """The table of this name."""
    if name not in TABLES:
        raise InputError(f"expected a table among {', '.join(TABLES)}, got {name!r}{suggestion(name, TABLES)}")
    return TABLES[name]


def cells_of_table(table: Table, dataset: str) -> list[Cell]:
    """A cell for each row; the row's label is the cell's column."""
    change = POPULATIONS[table.population][1]
    cells = []
    for label, row in table.rows.items():
        task = change(row(load_task(dataset)))
        cells.append(
            Cell(
                experiment=table.name,
                dataset=dataset,
                column=label,
                method=Method(name=task.settings.method),
                task=task,
                paper=None,
            )
        )
    return cells
