"""Better than the paper at its own budgets: ablations of what `pooled` is made of, as cells that are trained.

Place: presets -> cells -> runs, beside `experiments.py`, whose tables are the paper's. A table here is rows on one
population; a row changes the task. All of it is trained with the same seeds, so differences are paired.

Settings were chosen on a validation split of the training images that no client had, in tables of their own (`tuning`),
with a seed that no other table has. `CNN`, `FEATURES` and `OTHERS` are what was chosen; `FEDAVG` and `GDPFED` what was
chosen in the same way for the two opponents, from fewer rows.

Guarantees (tests of the same name):
  every_row_is_the_papers_configuration   the same clients, rounds, mean participation and delta in a whole table.
  tuning_never_sees_the_test_set          every tuning cell holds out validation images, and no other cell does.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gdpfed.errors import InputError, suggestion
from gdpfed.privacy.budgets import parse_compact
from gdpfed.results.experiments import Cell, Method
from gdpfed.tasks.task import Task, load_task

__all__ = [
    "CNN", "FEATURES", "FEDAVG", "GDPFED", "NO_BUDGET", "OTHERS", "OWN", "OWN_SETTINGS", "PAPER", "PAPER_CHOSEN",
    "PAPER_TUNED", "PLAIN_SERVER", "POPULATIONS", "SAME_CLIP", "SAME_SERVER", "SEEDS", "TABLES", "TUNING",
    "TUNING_SEED", "VALIDATION", "Recipe", "Table", "cells_of_table", "table_of",
]  # fmt: skip

SEEDS = 5
_EVERYONE = tuple(range(1, SEEDS + 1))
TUNING_SEED = 11
VALIDATION = 10_000

# Rows that every table has, beside ours.
SAME_SERVER = "fedavg, same server"
SAME_CLIP = "ours with next to no noise"
PLAIN_SERVER = "fedavg, plain server"
OWN_SETTINGS = "fedavg, settings chosen for it"
PAPER = "gdpfed+ (the paper: RDP)"
PAPER_TUNED = "gdpfed+ (RDP) with our settings"
PAPER_CHOSEN = "gdpfed+ (RDP), settings chosen for it"

Change = Callable[[Task], Task]


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What was chosen for a model: local learning rate, clip norm, and what the server does with released sums."""

    model: str
    width: int | None = None
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
        return _set(
            _training(task, model=self.model, model_width=self.width, evaluate_every=task.settings.num_rounds),
            method=method,
            **{**own, **changes},
        )

    @property
    def plain(self) -> "Recipe":
        """The same with a plain server. Our models have no preset: the clip norm is ours, at others all is noise."""
        return dataclasses.replace(self, server_learning_rate=1.0, averaging=0.0)


CNN = Recipe(model="cnn2", learning_rate=0.2, clip_norm=0.35, server_learning_rate=4.5, averaging=0.85)
FEATURES = Recipe(
    model="scattering-linear", learning_rate=0.02, clip_norm=0.15, server_learning_rate=3.0, averaging=0.8
)
# What the server does without us, at the preset's clip norm.
_PLAIN_CNN = Recipe(model="cnn2", learning_rate=0.1, clip_norm=1.5)
# What was chosen before smaller clip norms were tried.
_EARLIER_CNN = Recipe(model="cnn2", learning_rate=0.1, clip_norm=0.7, server_learning_rate=3.0, averaging=0.85)
# Models of our choice for the other data sets.
OTHERS: Mapping[str, Recipe] = {
    "svhn": Recipe(
        model="scattering-linear", learning_rate=0.02, clip_norm=0.15, server_learning_rate=3.0, averaging=0.9
    ),
    "cifar10": Recipe(
        model="scattering-linear", learning_rate=0.02, clip_norm=0.1, server_learning_rate=1.0, averaging=0.95
    ),
    "shakespeare": Recipe(
        model="char-linear", width=3, learning_rate=0.1, clip_norm=2.0, server_learning_rate=2.0, averaging=0.9
    ),
}
# What was chosen for fedavg. It does not clip: the clip norm is the preset's, and nothing uses it.
FEDAVG: Mapping[str, Recipe] = {
    "cnn": dataclasses.replace(_PLAIN_CNN, learning_rate=0.2, server_learning_rate=1.5),
    "features": dataclasses.replace(FEATURES, learning_rate=0.05, clip_norm=1.5),
    "cifar10": dataclasses.replace(OTHERS["cifar10"], learning_rate=0.05, clip_norm=1.5, server_learning_rate=2.0),
    "shakespeare": dataclasses.replace(
        OTHERS["shakespeare"], learning_rate=1.0, clip_norm=1.0, server_learning_rate=1.0
    ),
}
# And for gdpfed+, where it clips too.
GDPFED: Mapping[str, Recipe] = {
    "cnn": dataclasses.replace(CNN, server_learning_rate=9.0),
    "features": dataclasses.replace(FEATURES, server_learning_rate=6.0),
}
# Ours, the paper's and fedavg's, in the order of `_compared`.
_CNN_ROWS = (CNN, _PLAIN_CNN, FEDAVG["cnn"])
_FEATURES_ROWS = (FEATURES, FEATURES.plain, FEDAVG["features"])
# SVHN's own CNN, at a size that two cores can train. CIFAR-10's ResNet and Shakespeare's LSTM would show noise alone.
OWN = Recipe(model="cnn3", learning_rate=0.1, clip_norm=1.0, server_learning_rate=1.5)
_REDUCED_ROUNDS, _REDUCED_PARTICIPATION = 25, 0.01
# A budget at which next to no noise is left: what ours would reach with everything but the noise.
NO_BUDGET = 1000


@dataclass(frozen=True, kw_only=True, eq=False)
class Table:
    """Rows on a population; ``seeds`` are what it is trained with. ``chosen`` is the row that was taken, of choices."""

    name: str
    title: str
    population: str
    rows: Mapping[str, Change]
    seeds: Sequence[int]
    datasets: Sequence[str] = ("fmnist",)
    chosen: str = ""


def _set(task: Task, **settings: Any) -> Task:
    return dataclasses.replace(task, settings=dataclasses.replace(task.settings, **settings))


def _training(task: Task, **changes: Any) -> Task:
    return dataclasses.replace(task, training=dataclasses.replace(task.training, **changes))


def _with_budgets(task: Task, text: str) -> Task:
    return dataclasses.replace(task, budgets=parse_compact(text), budgets_source=text)


def _budgets(text: str) -> Change:
    # FedAvg knows no budgets: it is one set of runs for all of them. So is what has next to no noise.
    return lambda task: (
        task
        if task.settings.method == "fedavg" or task.budgets.epsilons.min() >= NO_BUDGET
        else _with_budgets(task, text)
    )


def _reduced(task: Task) -> Task:
    fewer = _set(task, num_rounds=_REDUCED_ROUNDS, participation=_REDUCED_PARTICIPATION)
    return _training(fewer, evaluate_every=_REDUCED_ROUNDS)


# Who the clients are, in words and as a change of the data set's preset.
POPULATIONS: Mapping[str, tuple[str, Change]] = {
    "paper": ("the paper's population and budgets", lambda task: task),
    "fewer": (
        "the paper's, without the roles that were held out",
        lambda task: _with_budgets(task, "229@0.5,229@1.5,229@3"),
    ),
    "reduced": ("the paper's population and budgets; fewer rounds, fewer clients in each", _reduced),
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


def _without_noise(recipe: Recipe) -> Change:
    """Ours in all but the noise: the same clip norm and server, at a budget that asks for next to none."""
    return lambda task: _with_budgets(recipe.on(task), f"{len(task.budgets)}@{NO_BUDGET}")


def _compared(recipe: Recipe, plain: Recipe, fedavg: Recipe) -> dict[str, Change]:
    """Without privacy, without noise, the paper's method, and ours."""
    return {
        "ours": _one(recipe),
        SAME_SERVER: _one(recipe, "fedavg"),
        OWN_SETTINGS: _one(fedavg, "fedavg"),
        SAME_CLIP: _without_noise(recipe),
        PAPER: _one(plain, "gdpfed+", accountant="rdp"),
        PAPER_TUNED: _one(recipe, "gdpfed+", accountant="rdp"),
    }


def _ablation(recipe: Recipe, plain: Recipe, fedavg: Recipe, gdpfed: Recipe) -> dict[str, Change]:
    """Each ingredient added alone to the paper's method, and taken alone from ours."""
    preset = _PLAIN_CNN
    longer = recipe.server_learning_rate * recipe.clip_norm / preset.clip_norm
    return {
        **_compared(recipe, plain, fedavg),
        PAPER_CHOSEN: _one(gdpfed, "gdpfed+", accountant="rdp"),
        PLAIN_SERVER: _one(plain, "fedavg"),
        "gdpfed+ with PLD": _one(plain, "gdpfed+"),
        "pooled (PLD), plain server": _one(plain),
        "ours with RDP": _one(recipe, accountant="rdp"),
        "ours without pooling (gdpfed-opc, inverse variance)": _one(recipe, "gdpfed-opc", weights="inverse-variance"),
        "ours with uniform rates": _one(recipe, rates="uniform"),
        "ours without averaging": _one(recipe, averaging=0.0),
        "ours with step 1": _one(recipe, server_learning_rate=1.0),
        "ours with the preset's clip norm, the same noise": _one(
            recipe, clip_norm=preset.clip_norm, server_learning_rate=longer
        ),
        "ours with the preset's learning rate": _one(recipe, learning_rate=preset.learning_rate),
    }


def _elsewhere(recipe: Recipe, plain: Recipe, without_privacy: Mapping[str, Change]) -> dict[str, Change]:
    """What is trained on the other data sets."""
    rows = _compared(recipe, plain, recipe)
    return {"ours": rows["ours"], **without_privacy, PAPER: rows[PAPER], PAPER_TUNED: rows[PAPER_TUNED]}


def _fairness(recipe: Recipe, plain: Recipe, fedavg: Recipe) -> dict[str, Change]:
    """Data that go with budgets: with one budget for all, as without noise, they would be other data."""
    rows = _compared(recipe, plain, fedavg)
    del rows[SAME_CLIP]
    return {
        **rows,
        "ours, no rate below half the mean": _one(recipe, fairness_floor=0.5),
        "ours with uniform rates": _one(recipe, rates="uniform"),
    }


def _choice(
    name: str,
    words: str,
    tried: Sequence[Recipe],
    chosen: Recipe,
    *,
    method: str = "pooled",
    dataset: str = "fmnist",
    population: str = "paper",
) -> Table:
    """Settings that were tried on held-out training examples, with the one that was taken."""
    accountant = {"accountant": "rdp"} if method == "gdpfed+" else {}
    return Table(
        name=f"tuning-{name}" if method == "pooled" else f"tuning-{name}-{method}",
        title=f"Choice of settings{'' if method == 'pooled' else f' for {method}'}: {words}, held-out examples",
        population=population,
        rows={_label(recipe, method): _held_out(_one(recipe, method, **accountant)) for recipe in tried},
        seeds=(TUNING_SEED,),
        datasets=(dataset,),
        chosen=_label(chosen, method),
    )


def _label(recipe: Recipe, method: str) -> str:
    words = "" if recipe.width is None else f"width {recipe.width}, "
    names = [name for name in _CHOSEN if method != "fedavg" or name != "clip_norm"]
    return words + ", ".join(f"{name} {getattr(recipe, name):g}" for name in names)


def _held_out(change: Change) -> Change:
    return lambda task: _training(change(task), validation=VALIDATION)


_CHOSEN = ("learning_rate", "clip_norm", "server_learning_rate", "averaging")


def _tried(recipe: Recipe, *rows: tuple[float, float, float, float], width: int | None = None) -> list[Recipe]:
    """The recipe with other numbers, in the order of `_CHOSEN`."""
    return [
        Recipe(
            model=recipe.model,
            width=width or recipe.width,
            learning_rate=rate,
            clip_norm=clip_norm,
            server_learning_rate=step,
            averaging=averaging,
        )
        for rate, clip_norm, step, averaging in rows
    ]


# The clip norm falls at about the same step times clip norm; then what is near, and other local steps.
_TRIED_CNN = _tried(
    CNN,
    (0.1, 1.5, 1, 0),
    (0.1, 1.5, 1.5, 0.85),
    (0.1, 1.0, 2, 0.85),
    (0.1, 0.7, 3, 0.85),
    (0.1, 0.5, 4, 0.85),
    (0.1, 0.35, 6, 0.85),
    (0.1, 0.25, 8, 0.85),
    (0.1, 0.15, 14, 0.85),
    (0.1, 0.7, 4, 0.85),
    (0.1, 0.5, 3, 0.85),
    (0.1, 0.5, 6, 0.85),
    (0.1, 0.35, 3, 0.85),
    (0.1, 0.35, 4.5, 0.85),
    (0.1, 0.35, 8, 0.85),
    (0.1, 0.25, 6, 0.85),
    (0.1, 0.35, 6, 0.9),
    (0.05, 0.35, 6, 0.85),
    (0.2, 0.35, 6, 0.85),
    (0.3, 0.35, 6, 0.85),
    (0.2, 0.35, 4.5, 0.85),
    (0.2, 0.25, 8, 0.85),
    (0.2, 0.5, 4, 0.85),
    (0.3, 0.5, 4, 0.85),
)
_TRIED_FEATURES = _tried(
    FEATURES,
    (0.02, 0.2, 1, 0),
    (0.02, 0.2, 2, 0),
    (0.02, 0.2, 2, 0.8),
    (0.02, 0.2, 3, 0.8),
    (0.02, 0.15, 3, 0.8),
    (0.02, 0.15, 4, 0.8),
    (0.02, 0.1, 4, 0.8),
    (0.02, 0.1, 6, 0.8),
    (0.02, 0.07, 6, 0.8),
    (0.02, 0.15, 4, 0.9),
    (0.02, 0.1, 6, 0.9),
    (0.01, 0.15, 3, 0.8),
    (0.03, 0.15, 3, 0.8),
    (0.05, 0.15, 3, 0.8),
    (0.05, 0.15, 4, 0.8),
    (0.05, 0.2, 3, 0.8),
    (0.05, 0.1, 4, 0.8),
)
_TRIED_FEDAVG: Mapping[str, Sequence[Recipe]] = {
    "cnn": _tried(
        FEDAVG["cnn"],
        *((rate, 1.5, step, 0.85) for rate in (0.1, 0.2) for step in (1, 1.5, 2, 3)),
        (0.3, 1.5, 1, 0.85),
        (0.3, 1.5, 1.5, 0.85),
        (0.2, 1.5, 1.5, 0),
        (0.2, 1.5, 1.5, 0.9),
    ),
    "features": _tried(
        FEDAVG["features"],
        *((rate, 1.5, step, 0.8) for rate in (0.02, 0.05) for step in (1.5, 3, 6, 12)),
        (0.1, 1.5, 1.5, 0.8),
        (0.1, 1.5, 3, 0.8),
        (0.2, 1.5, 1.5, 0.8),
        (0.2, 1.5, 3, 0.8),
        (0.05, 1.5, 3, 0),
        (0.05, 1.5, 3, 0.9),
    ),
    "cifar10": _tried(FEDAVG["cifar10"], *((rate, 1.5, step, 0.95) for rate in (0.02, 0.05) for step in (1, 2, 3))),
    "shakespeare": _tried(
        FEDAVG["shakespeare"],
        *((rate, 1, step, 0.9) for rate in (0.1, 0.3) for step in (1, 2, 3)),
        (0.5, 1, 1, 0.9),
        (1, 1, 1, 0.9),
        (0.3, 1, 0.5, 0.9),
    ),
}
_TRIED_GDPFED: Mapping[str, Sequence[Recipe]] = {
    "cnn": _tried(
        CNN,
        (0.2, 0.35, 2, 0.85),
        (0.2, 0.35, 3, 0.85),
        (0.2, 0.35, 4.5, 0.85),
        (0.2, 0.35, 6, 0.85),
        (0.2, 0.35, 9, 0.85),
        (0.2, 0.35, 13, 0.85),
        (0.1, 0.7, 2, 0.85),
        (0.1, 1.5, 1, 0.85),
    ),
    "features": _tried(
        FEATURES,
        (0.02, 0.15, 1.5, 0.8),
        (0.02, 0.15, 2, 0.8),
        (0.02, 0.15, 3, 0.8),
        (0.02, 0.15, 4, 0.8),
        (0.02, 0.15, 6, 0.8),
        (0.02, 0.15, 9, 0.8),
        (0.02, 0.1, 6, 0.8),
        (0.02, 0.15, 2, 0.9),
        (0.02, 0.1, 3, 0.8),
        (0.02, 0.2, 1.5, 0.8),
    ),
}
_TRIED_OTHERS: Mapping[str, Sequence[Recipe]] = {
    "svhn": _tried(
        OTHERS["svhn"],
        (0.02, 0.3, 3, 0.9),
        (0.02, 0.15, 3, 0.9),
        (0.02, 0.15, 2, 0.95),
        (0.02, 0.1, 4, 0.9),
    ),
    "cifar10": _tried(
        OTHERS["cifar10"],
        (0.02, 0.15, 3, 0.8),
        (0.02, 0.1, 2, 0.9),
        (0.02, 0.1, 2, 0.95),
        (0.02, 0.1, 1.5, 0.95),
        (0.02, 0.1, 1, 0.95),
        (0.02, 0.1, 0.7, 0.95),
        (0.02, 0.1, 1, 0.9),
        (0.02, 0.1, 1.5, 0.9),
    ),
    "shakespeare": [
        *_tried(OTHERS["shakespeare"], (0.1, 1, 2, 0.9), (0.1, 2, 2, 0.9), (0.1, 4, 2, 0.9), width=2),
        *_tried(
            OTHERS["shakespeare"],
            (0.1, 1, 2, 0.9),
            (0.1, 2, 2, 0.9),
            (0.1, 1, 4, 0.9),
            (0.1, 2, 1, 0.9),
            (0.1, 2, 3, 0.9),
            (0.1, 2, 2, 0.8),
            (0.1, 2, 2, 0.95),
            (0.1, 3, 2, 0.9),
            (0.3, 2, 2, 0.9),
            width=3,
        ),
        *_tried(OTHERS["shakespeare"], (0.1, 2, 2, 0.9), (0.1, 2, 3, 0.9), width=4),
        *_tried(OTHERS["shakespeare"], (0.1, 2, 2, 0.9), (0.1, 2, 3, 0.9), width=5),
    ],
}


_TRIED_OWN = _tried(OWN, (0.1, 0.35, 1.3, 0.6), (0.1, 1, 1.5, 0), (0.1, 0.5, 3, 0))
_TITLES = {
    "svhn": "SVHN, scattering features",
    "cifar10": "CIFAR-10, scattering features",
    "shakespeare": "Shakespeare, the last characters",
}


def _fmnist() -> Iterator[Table]:
    features, cnn = "scattering features", "the preset's CNN"
    yield _choice("features", features, _TRIED_FEATURES, FEATURES)
    yield _choice("cnn", cnn, _TRIED_CNN, CNN)
    for name, words in (("features", features), ("cnn", cnn)):
        yield _choice(name, words, _TRIED_FEDAVG[name], FEDAVG[name], method="fedavg")
        yield _choice(name, words, _TRIED_GDPFED[name], GDPFED[name], method="gdpfed+")
    yield Table(
        name="features",
        title="A model of our choice: scattering features, linear head",
        population="paper",
        rows=_ablation(*_FEATURES_ROWS, GDPFED["features"]),
        seeds=_EVERYONE,
    )
    yield Table(
        name="cnn",
        title="The preset's own CNN",
        population="paper",
        rows={**_ablation(*_CNN_ROWS, GDPFED["cnn"]), "ours as first chosen": _one(_EARLIER_CNN)},
        seeds=_EVERYONE,
    )
    for population in ("half", "strict", "dirichlet", "tied"):
        rule = _fairness if population == "tied" else _compared
        for name, words, recipes in (("features", features, _FEATURES_ROWS), ("cnn", cnn, _CNN_ROWS)):
            yield Table(
                name=f"{name}-{population}",
                title=f"{words[0].upper()}{words[1:]}: {POPULATIONS[population][0]}",
                population=population,
                rows=rule(*recipes),
                seeds=_EVERYONE,
            )


def _others() -> Iterator[Table]:
    for dataset, recipe in OTHERS.items():
        words, population = _TITLES[dataset], "fewer" if dataset == "shakespeare" else "paper"
        yield _choice(dataset, words, _TRIED_OTHERS[dataset], recipe, dataset=dataset, population=population)
        without_privacy = {SAME_SERVER: _one(recipe, "fedavg")}
        if dataset in FEDAVG:
            tried, own = _TRIED_FEDAVG[dataset], FEDAVG[dataset]
            yield _choice(dataset, words, tried, own, method="fedavg", dataset=dataset, population=population)
            without_privacy[OWN_SETTINGS] = _one(own, "fedavg")
        yield Table(
            name=dataset,
            title=f"A model of our choice: {words}",
            population="paper",
            rows=_elsewhere(recipe, recipe.plain, without_privacy),
            seeds=_EVERYONE[:3],
            datasets=(dataset,),
        )
    yield _choice("svhn-own", "SVHN, the preset's CNN, reduced", _TRIED_OWN, OWN, dataset="svhn", population="reduced")
    # Gdpfed+ and fedavg are cells of the paper's main table, whose records name its accountant.
    preset = Recipe(model="cnn3", learning_rate=0.1, clip_norm=1.0)
    yield Table(
        name="svhn-own",
        title="The preset's own CNN, reduced: SVHN",
        population="reduced",
        rows=_elsewhere(OWN, preset, {PLAIN_SERVER: _one(preset, "fedavg", accountant="rdp")}),
        seeds=_EVERYONE[:1],
        datasets=("svhn",),
    )


TABLES: Mapping[str, Table] = {table.name: table for table in (*_fmnist(), *_others())}
TUNING = tuple(table.name for table in TABLES.values() if table.chosen)


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
