"""Better than the paper at its own budgets: ablations of what `pooled` is made of, as cells that are trained.

Place: presets -> cells -> runs, beside `experiments.py`, whose tables are the paper's. A table here is rows on one
population; a row changes the task. All of it is trained with the same seeds, so differences are paired.

Settings were chosen on a validation split of the training images that no client had, in tables of their own (`tuning`),
with a seed that no other table has (`recipes`).

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
from gdpfed.tasks.advice import LEARNING_RATE
from gdpfed.tasks.task import Task, load_task
from gdpfed_reproduce.experiments import Cell, Method, as_the_paper
from gdpfed_reproduce.recipes import (
    AUTO,
    CHARACTERS,
    CHOSEN,
    CNN,
    EARLIER_CNN,
    FEATURES,
    FEDAVG,
    GDPFED,
    OTHERS,
    PLAIN_CNN,
    TRIED_CNN,
    TRIED_FEATURES,
    TRIED_FEDAVG,
    TRIED_GDPFED,
    TRIED_OTHERS,
    Recipe,
    with_settings,
    with_training,
)

__all__ = [
    "AGAINST_SERVER", "AUTO_CHARACTERS", "AUTO_PAPER", "AUTO_PLAIN", "AUTO_ROW", "AUTO_WITHOUT", "CORRELATED",
    "NO_BUDGET", "OWN_SETTINGS", "PAPER", "PAPER_CHOSEN", "PAPER_TUNED", "PLAIN_SERVER", "POPULATIONS", "SAME_CLIP",
    "SAME_SERVER", "SEEDS", "TABLES", "TUNING", "TUNING_SEED", "UNIFORM", "VALIDATION", "Table", "cells_of_table",
    "table_of",
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
# How often a client is asked where the promise holds against the server; its trainings follow.
_ASKS = 10
AGAINST_SERVER = f"ours, against the server too: asked {_ASKS} times"
CORRELATED = f"{AGAINST_SERVER}, correlated noise"
AUTO_ROW = "auto"
AUTO_PAPER = "gdpfed+ (RDP) with the settings of auto"
AUTO_PLAIN = "auto, scattering features"
AUTO_CHARACTERS = "auto, the last characters"
UNIFORM = "auto, uniform rates"
_LONG_STEP = "pooled, at the preset's clip norm, the step by the signal-to-noise"
AUTO_WITHOUT = "fedavg, same features"

Change = Callable[[Task], Task]


# Ours, the paper's and fedavg's, in the order of `_compared`.
_CNN_ROWS = (CNN, PLAIN_CNN, FEDAVG["cnn"])
_FEATURES_ROWS = (FEATURES, FEATURES.plain, FEDAVG["features"])
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


def _with_budgets(task: Task, text: str) -> Task:
    return dataclasses.replace(task, budgets=parse_compact(text), budgets_source=text)


def _seeds(name: str, population: str) -> tuple[int, ...]:
    """Twice as many where a seed tells least: the CNN on unequal data, whose runs lie two points apart."""
    return tuple(range(1, 2 * SEEDS + 1)) if (name, population) == ("cnn", "dirichlet") else _EVERYONE


def _budgets(text: str) -> Change:
    # FedAvg knows no budgets: it is one set of runs for all of them. So is what has next to no noise.
    return lambda task: (
        task
        if task.settings.method == "fedavg" or task.budgets.epsilons.min() >= NO_BUDGET
        else _with_budgets(task, text)
    )


# Who the clients are, in words and as a change of the data set's preset.
POPULATIONS: Mapping[str, tuple[str, Change]] = {
    "paper": ("the paper's population and budgets", lambda task: task),
    "fewer": (
        "the paper's, without the roles that were held out",
        lambda task: _with_budgets(task, "229@0.5,229@1.5,229@3"),
    ),
    "half": ("half the budgets: 0.25, 0.75 and 1.5", _budgets("2000@0.25,2000@0.75,2000@1.5")),
    "strict": ("3:2:1, most clients strict", _budgets("3000@0.5,2000@1.5,1000@3")),
    "few-lax": ("nine in ten ask for 0.5, the others for 8", _budgets("5400@0.5,600@8")),
    "dirichlet": (
        "Dirichlet 0.3, budgets dealt at random",
        lambda task: with_training(task, partition="dirichlet", concentration=0.3),
    ),
    "tied": (
        "Dirichlet 0.3, strict clients with small labels",
        lambda task: with_training(task, partition="dirichlet", concentration=0.3, group_skew=0.5),
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
    preset = PLAIN_CNN
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


def _auto(recipe: Recipe) -> dict[str, Change]:
    """Nothing chosen; and the paper's method with the same server."""
    adapted = {"normalised": True, "adaptive_step": True}
    return {AUTO_ROW: _one(recipe, "auto"), AUTO_PAPER: _one(recipe, "gdpfed+", accountant="rdp", **adapted)}


def _with_own_models() -> dict[str, Change]:
    """The models of the paper's own tables with what `--auto` takes for any model, and two rows of those tables."""

    def row(**settings: Any) -> Change:
        return lambda task: with_settings(as_the_paper(task), **settings)

    auto, rdp = {"learning_rate": LEARNING_RATE, "clip_norm": 1.0}, {"accountant": "rdp"}
    return {
        AUTO_ROW: row(method="auto", **auto),
        AUTO_PAPER: row(method="gdpfed+", normalised=True, adaptive_step=True, **auto, **rdp),
        PAPER: row(method="gdpfed+", **rdp),
        PLAIN_SERVER: row(method="fedavg", **rdp),
    }


def _without(recipe: Recipe, preset: Recipe, tuned: Recipe) -> dict[str, Change]:
    """Each part of `auto` taken away; last, a step that is four times the signal-to-noise, as `gdpfed plan --objective`
    has it for clip norms that updates reach, at one that they do not reach."""
    clip, longer = {"clip_norm": preset.clip_norm}, tuned.server_learning_rate
    return {
        "auto, clipped at the preset's norm": _one(recipe, "auto", normalised=False, **clip),
        "auto, with a step of 1": _one(recipe, "auto", adaptive_step=False, averaging=0.8, **clip),
        "auto, without pooling": _one(
            recipe, "gdpfed-opc", weights="inverse-variance", normalised=True, adaptive_step=True
        ),
        UNIFORM: _one(recipe, "auto", rates="uniform"),
        # An average that forgets all but a hundredth: without any the step finds no swing.
        "auto, hardly averaged": _one(recipe, "auto", averaging=0.01),
        "auto, RDP": _one(recipe, "auto", accountant="rdp"),
        _LONG_STEP: _one(recipe, clip_norm=preset.clip_norm, server_learning_rate=longer, averaging=0.8),
    }


def _autos() -> Iterator[Table]:
    """The method that needs no tuning, wherever there is a tuned row."""
    for name, words, tuned in (("features", "scattering features", FEATURES), ("cnn", "the preset's CNN", CNN)):
        recipe = AUTO[name]
        yield Table(
            name=f"auto-{name}",
            title=f"Nothing tuned: {words}",
            population="paper",
            rows=_auto(recipe),
            seeds=_EVERYONE,
        )
        yield Table(
            name=f"auto-{name}-parts",
            title=f"Nothing tuned: {words}, each part taken away",
            population="paper",
            rows={AUTO_ROW: _one(recipe, "auto"), **_without(recipe, PLAIN_CNN, tuned)},
            seeds=_EVERYONE,
        )
        yield Table(
            name=f"auto-{name}-few-lax",
            title=f"Nothing tuned: {words}: {POPULATIONS['few-lax'][0]}",
            population="few-lax",
            rows={AUTO_ROW: _one(recipe, "auto"), UNIFORM: _one(recipe, "auto", rates="uniform")},
            seeds=_EVERYONE,
        )
        rates = (0.005, 0.01, 0.02, 0.05, 0.1) if name == "features" else (0.05, 0.1, 0.2, 0.4)
        yield Table(
            name=f"auto-{name}-rates",
            title=f"Nothing tuned: {words}, other local learning rates",
            population="paper",
            rows={f"auto, learning rate {rate:g}": _one(recipe, "auto", learning_rate=rate) for rate in rates},
            seeds=_EVERYONE[:3],
        )
        for population in ("half", "strict", "dirichlet"):
            yield Table(
                name=f"auto-{name}-{population}",
                title=f"Nothing tuned: {words}: {POPULATIONS[population][0]}",
                population=population,
                rows=_auto(recipe),
                seeds=_seeds(name, population),
            )
    yield Table(
        name="auto-norms",
        title="Nothing tuned: scattering features, other clip norms to start from",
        population="paper",
        rows={f"auto, clip norm {norm:g}": _one(AUTO["features"], "auto", clip_norm=norm) for norm in (0.01, 1, 100)},
        seeds=_EVERYONE[:3],
    )
    for dataset, (name, words) in _ADVISED.items():
        without = dataclasses.replace(FEDAVG.get(dataset, OTHERS[dataset]), model=AUTO[name].model, width=None)
        plain = (AUTO_CHARACTERS, CHARACTERS) if name == "words" else (AUTO_PLAIN, AUTO["features"])
        rows = {**_auto(AUTO[name]), plain[0]: _one(plain[1], "auto"), AUTO_WITHOUT: _one(without, "fedavg")}
        yield Table(
            name=f"auto-{dataset}",
            title=f"Nothing tuned: {words}",
            population="paper",
            rows=rows,
            seeds=_EVERYONE,
            datasets=(dataset,),
        )
    for dataset in ("svhn", "cifar10", "shakespeare"):
        yield Table(
            name=f"auto-own-{dataset}",
            title=f"Nothing tuned: the paper's kind of model, {load_task(dataset).title}",
            population="paper",
            rows=_with_own_models(),
            seeds=_EVERYONE[:3],
            datasets=(dataset,),
        )
    for dataset, recipe in (("shakespeare", AUTO["public text"]), ("cifar10", AUTO["public images"])):
        yield Table(
            name=f"auto-public-{dataset}",
            title=f"Nothing tuned, on features learnt from public data: {load_task(dataset).title}",
            population="paper",
            rows={AUTO_ROW: _one(recipe, "auto"), PLAIN_SERVER: _one(recipe, "fedavg")},
            seeds=_EVERYONE,
            datasets=(dataset,),
        )


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
    names = [name for name in CHOSEN if method != "fedavg" or name != "clip_norm"]
    return words + ", ".join(f"{name} {getattr(recipe, name):g}" for name in names)


def _held_out(change: Change) -> Change:
    return lambda task: with_training(change(task), validation=VALIDATION)


_TITLES = {
    "svhn": "SVHN, scattering features",
    "cifar10": "CIFAR-10, scattering features",
    "shakespeare": "Shakespeare, the last characters",
}


# What `gdpfed train --auto` takes there: a recipe, and its words.
_ADVISED = {
    "svhn": ("centred", "SVHN, centred features"),
    "cifar10": ("mirrored", "CIFAR-10, mirrored features"),
    "shakespeare": ("words", "Shakespeare, the word so far"),
}


def _fmnist() -> Iterator[Table]:
    features, cnn = "scattering features", "the preset's CNN"
    yield _choice("features", features, TRIED_FEATURES, FEATURES)
    yield _choice("cnn", cnn, TRIED_CNN, CNN)
    for name, words in (("features", features), ("cnn", cnn)):
        yield _choice(name, words, TRIED_FEDAVG[name], FEDAVG[name], method="fedavg")
        yield _choice(name, words, TRIED_GDPFED[name], GDPFED[name], method="gdpfed+")
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
        rows={**_ablation(*_CNN_ROWS, GDPFED["cnn"]), "ours as first chosen": _one(EARLIER_CNN)},
        seeds=_EVERYONE,
    )
    for name, words, recipe in (("features", features, FEATURES), ("cnn", cnn, CNN)):
        yield Table(
            name=f"{name}-server",
            title=f"{words[0].upper()}{words[1:]}: the promise against the server",
            population="paper",
            rows={
                "ours": _one(recipe),
                AGAINST_SERVER: _one(recipe, against="server", asks=_ASKS),
                CORRELATED: _one(recipe, against="server", asks=_ASKS, correlated_noise=True),
            },
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
                seeds=_seeds(name, population),
            )


def _others() -> Iterator[Table]:
    for dataset, recipe in OTHERS.items():
        words, population = _TITLES[dataset], "fewer" if dataset == "shakespeare" else "paper"
        yield _choice(dataset, words, TRIED_OTHERS[dataset], recipe, dataset=dataset, population=population)
        without_privacy = {SAME_SERVER: _one(recipe, "fedavg")}
        if dataset in FEDAVG:
            tried, own = TRIED_FEDAVG[dataset], FEDAVG[dataset]
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


TABLES: Mapping[str, Table] = {table.name: table for table in (*_fmnist(), *_others(), *_autos())}
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
