"""The paper's experiments that train, each as a list of cells: what to run, and the paper's figure where it prints one.

Place: presets -> cells -> runs. An experiment varies one thing of a data set's configuration (a column) for some
methods; a cell is a column and a method, and is trained once for each seed. Cells of two experiments with the same task
are the same runs.

All cells use the RDP accountant, as the paper did. Methods and weightings that the paper does not have stand beside its
own and are marked: ``paper`` is None.

Guarantees (tests of the same name):
  every_printed_accuracy_is_a_cell     each accuracy that the paper prints belongs to exactly one cell of its table.
  shared_cells_are_the_same_runs       the default column of every experiment is the main table's cell.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from gdpfed.errors import InputError, expect_word, suggestion
from gdpfed.privacy.budgets import parse_compact
from gdpfed.report.paper import paper_tables
from gdpfed.tasks.catalogue import source_of
from gdpfed.tasks.task import PRESETS, Task, load_task

__all__ = [
    "DEFAULT_COLUMN", "EXPERIMENTS", "FULL", "SMOKE", "Cell", "Experiment", "Method", "PaperFigure", "Scale",
    "as_the_paper", "cells_of", "experiment_of",
]  # fmt: skip

_PAPER_NAMES = {"fedavg": "p-fedavg"}
DEFAULT_COLUMN = ""

Column = Callable[[Task], Task]


@dataclass(frozen=True, kw_only=True)
class PaperFigure:
    """An accuracy in percent that the paper prints, with its std over three seeds."""

    mean: float
    std: float


@dataclass(frozen=True, kw_only=True)
class Method:
    """A method of a table; ``weights`` is empty for its own."""

    name: str
    weights: Literal["", "inverse-variance"] = ""

    @property
    def label(self) -> str:
        """As a table shows it."""
        return f"{self.name}, {self.weights}" if self.weights else self.name


@dataclass(frozen=True, kw_only=True)
class Scale:
    """How much of the paper's configuration is run: ``full`` is all of it, except what is stated here.

    ``smoke`` only shows that everything works: few rounds, few clients in each, and FMNIST on the embedded images.
    """

    name: Literal["full", "smoke"] = "full"
    num_rounds: int | None = None
    participation: float | None = None

    def __post_init__(self) -> None:
        expect_word("a scale among", self.name, ("full", "smoke"))


FULL = Scale()
SMOKE = Scale(name="smoke")

# Rounds, clients in a round, local steps, and other training settings, such that a run takes seconds.
_SMOKE: Mapping[str, tuple[int, int, int, dict[str, Any]]] = {
    "fmnist": (6, 60, 5, {"dataset": "fmnist-mini"}),
    "svhn": (6, 60, 2, {}),
    "cifar10": (10, 60, 1, {"model_width": 8}),
    "shakespeare": (8, 36, 2, {}),
}


@dataclass(frozen=True, kw_only=True, eq=False)
class Cell:
    """One entry of a table."""

    experiment: str
    dataset: str
    column: str
    method: Method
    task: Task
    paper: PaperFigure | None


@dataclass(frozen=True, kw_only=True, eq=False)
class Experiment:
    """A table or figure of the paper. ``varies`` names what the columns are, and is empty where there is one; of other
    data sets than ``datasets`` it has no cells."""

    name: str
    title: str
    varies: str
    methods: Sequence[Method]
    columns: Mapping[str, Column]
    paper: Callable[[str, str, str], PaperFigure | None]
    datasets: Sequence[str] = tuple(PRESETS)


def _same(task: Task) -> Task:
    return task


def _set(task: Task, **settings: Any) -> Task:
    return dataclasses.replace(task, settings=dataclasses.replace(task.settings, **settings))


def _with_budgets(task: Task, counts: Sequence[int], epsilons: Sequence[float]) -> Task:
    text = ",".join(f"{count}@{epsilon:g}" for count, epsilon in zip(counts, epsilons, strict=True))
    return dataclasses.replace(task, budgets=parse_compact(text), budgets_source=text)


def _levels(task: Task) -> tuple[list[int], list[float]]:
    """How many clients of a preset have which budget, strictest first."""
    epsilons = sorted(set(task.budgets.epsilons.tolist()))
    return [int((task.budgets.epsilons == epsilon).sum()) for epsilon in epsilons], epsilons


def _preferences(ratio: str) -> Column:
    parts = [int(part) for part in ratio.split(":")]

    def change(task: Task) -> Task:
        # DP-FedAvg knows the strictest budget and no other: its columns are one set of runs.
        if ratio == "2:2:2" or task.settings.method == "dp-fedavg":
            return task
        counts, epsilons = _levels(task)
        return _with_budgets(task, [sum(counts) * part // sum(parts) for part in parts], epsilons)

    return change


def _budgets(factor: float) -> Column:
    def change(task: Task) -> Task:
        if factor == 1:
            return task
        counts, epsilons = _levels(task)
        return _with_budgets(task, counts, [factor * epsilon for epsilon in epsilons])

    return change


def _model(name: str, width: int | None = None) -> Column:
    def change(task: Task) -> Task:
        return dataclasses.replace(task, training=dataclasses.replace(task.training, model=name, model_width=width))

    return change


def _step(rate: float) -> Column:
    return lambda task: _set(task, server_learning_rate=rate)


def _without_batches(task: Task) -> Task:
    """A network like the preset's, whose layers are not normalised by the statistics of each batch."""
    other = {"svhn": "cnn3", "cifar10": "resnet18"}[task.training.dataset]
    return _model(other, task.training.model_width)(task)


def _times_as_wide(factor: float) -> Column:
    """The preset's network with so many times its channels."""

    def change(task: Task) -> Task:
        # The width that `cnn3_batch` has by itself is not in SVHN's preset.
        width = task.training.model_width or {"svhn": 16}[task.training.dataset]
        return _model(task.training.model, int(factor * width))(task)

    return change


def _steps_of_passes(task: Task) -> Task:
    """As many steps as so many whole passes have. All of ours are of full batches; the last of a pass is not."""
    examples = source_of(task.training.dataset).num_train // len(task.budgets)
    batches = math.ceil(examples / task.training.batch_size)
    return _set(task, local_steps=batches * task.settings.local_steps)


def _every_position(task: Task) -> Task:
    """The data and the loss of public code by the paper's authors (`plays.py`)."""
    here = "gdpfed_reproduce.plays"
    training = dataclasses.replace(
        task.training,
        dataset=f"{here}:padded",
        model=f"{here}:small_lstm",
        loss="next-token",
        metrics=(f"{here}:of_text",),
    )
    return dataclasses.replace(task, training=training)


def as_the_paper(preset: Task) -> Task:
    """The task of a preset, in the set-up of the paper's own tables as far as it is known."""
    return _every_position(preset) if preset.training.dataset == "shakespeare" else preset


def _lstm(name: str) -> Column:
    return _model(f"gdpfed_reproduce.plays:{name}")


def _last_position(task: Task) -> Task:
    return dataclasses.replace(task, training=load_task("shakespeare").training)


def _clipping(factor: float) -> Column:
    return lambda task: _set(task, clip_norm=factor * task.settings.clip_norm)


def _heterogeneity(concentration: float) -> Column:
    def change(task: Task) -> Task:
        training = dataclasses.replace(task.training, partition="dirichlet", concentration=concentration)
        return dataclasses.replace(task, training=training)

    return change


def _sparsification(level: str) -> Column:
    if level == "1.0,1.0,1.0":
        return lambda task: _set(task, method="gdpfed-opc")
    if level == "0.7,0.8,0.9":
        return _same
    return lambda task: _set(task, keep=tuple(float(part) for part in level.split(",")))


def _figure(printed: Any) -> PaperFigure | None:
    if printed is None:
        return None
    mean, std = (printed["mean"], printed["std"]) if isinstance(printed, dict) else printed
    return PaperFigure(mean=float(mean), std=float(std))


def _main_figure(dataset: str, method: str, column: str) -> PaperFigure | None:
    del column
    return _figure(paper_tables()["main_accuracy"].get(_PAPER_NAMES.get(method, method), {}).get(dataset))


def _column_figure(table: str, columns: Sequence[Any]) -> Callable[[str, str, Any], PaperFigure | None]:
    """Reads a table of the paper that is by data set, method and column."""

    def find(dataset: str, method: str, column: Any) -> PaperFigure | None:
        printed = paper_tables()[table]
        rows = printed if "cifar10" in table and dataset == "cifar10" else printed.get(dataset, {})
        row = rows.get(_PAPER_NAMES.get(method, method)) if isinstance(rows, dict) else None
        return None if row is None else _figure(row[columns.index(column)])

    return find


def _sparsification_figure(dataset: str, method: str, column: str) -> PaperFigure | None:
    del method
    return _figure(paper_tables()["sparsification"][column].get(dataset))


# Two columns of the paper's tables: the change, and where its figures are.
_MORE_NOISE: Mapping[str, tuple[Column, tuple[str, float]]] = {
    "budgets 0.5x": (_budgets(0.5), ("privacy_budget_scale", 0.5)),
    "clip norm 1.5x": (_clipping(1.5), ("clipping_threshold", 1.5)),
}


def _large(change: Column) -> Column:
    return lambda task: _model("large-cnn")(change(task))


def _more_noise_figure(dataset: str, method: str, column: str) -> PaperFigure | None:
    table, factor = _MORE_NOISE[column][1]
    return _column_figure(table, paper_tables()[table]["columns"])(dataset, method, factor)


def _methods(*names: str) -> tuple[Method, ...]:
    return tuple(Method(name=name) for name in names)


def _by_columns(
    name: str,
    title: str,
    varies: str,
    table: str,
    methods: Sequence[Method],
    change: Callable[[Any], Column],
    mark: str,
    *,
    datasets: Sequence[str] = tuple(PRESETS),
) -> Experiment:
    """An experiment whose columns are those of a table of the paper."""
    values = paper_tables()[table]["columns"]
    labels = [value if isinstance(value, str) else f"{value:g}{mark}" for value in values]
    return Experiment(
        name=name,
        title=title,
        varies=varies,
        methods=methods,
        columns={label: change(value) for label, value in zip(labels, values, strict=True)},
        paper=_column_figure(table, labels),
        datasets=datasets,
    )


def _experiments() -> dict[str, Experiment]:
    ours = _methods("gdpfed-opc", "idp-scale", "pooled")
    reweighted = tuple(Method(name=name, weights="inverse-variance") for name in ("gdpfed", "gdpfed+"))
    paper = _methods("fedavg", "dp-fedavg", "gdpfed", "pfa", "idp-fedavg", "gdpfed+")
    varied = _methods("dp-fedavg", "gdpfed+", "pooled")
    listed = [
        Experiment(
            name="main", title="Accuracy of every method", varies="", methods=(*paper, *ours, *reweighted),
            columns={DEFAULT_COLUMN: _same}, paper=_main_figure,
        ),
        Experiment(
            name="convergence", title="Accuracy against rounds", varies="",
            methods=_methods("fedavg", "dp-fedavg", "gdpfed", "gdpfed+"),
            columns={DEFAULT_COLUMN: _same}, paper=_main_figure,
        ),
        Experiment(
            name="steps", title="The step that the paper's weights hide", varies="server learning rate",
            methods=_methods("gdpfed", "pfa", "idp-fedavg", "gdpfed+"),
            columns={"1": _same, "2": _step(2.0), "3": _step(3.0)}, paper=_main_figure,
        ),
        Experiment(
            name="models", title="Other CNNs with two convolutions", varies="model",
            methods=_methods("fedavg", "dp-fedavg", "gdpfed", "pfa", "gdpfed+"),
            columns={
                "cnn2": _same, "small-cnn": _model("small-cnn"), "cnn2, twice as wide": _model("cnn2", 32),
                "cnn2-padded": _model("cnn2-padded"), "large-cnn": _model("large-cnn"),
            },
            paper=_main_figure, datasets=("fmnist",),
        ),
        Experiment(
            name="sensitivity", title="The large CNN under more noise", varies="what is changed",
            methods=_methods("dp-fedavg", "gdpfed+"),
            columns={column: _large(change) for column, (change, _) in _MORE_NOISE.items()},
            paper=_more_noise_figure, datasets=("fmnist",),
        ),
        Experiment(
            name="normalisation", title="What batch normalisation changes", varies="normalised by",
            methods=_methods("fedavg"),
            columns={"batches": _same, "groups, or nothing": _without_batches},
            paper=_main_figure, datasets=("svhn", "cifar10"),
        ),
        Experiment(
            name="passes", title="As many local steps as whole passes have", varies="local iterations are",
            methods=_methods("fedavg", "dp-fedavg", "gdpfed+"),
            columns={"steps": _same, "passes": _steps_of_passes},
            paper=_main_figure, datasets=("svhn", "cifar10"),
        ),
        Experiment(
            name="widths", title="How wide the network is", varies="times as wide",
            methods=_methods("fedavg", "dp-fedavg", "gdpfed+"),
            columns={"0.5": _times_as_wide(0.5), "1": _same, "2": _times_as_wide(2)},
            paper=_main_figure, datasets=("svhn", "cifar10"),
        ),
        Experiment(
            name="positions", title="Which characters count", varies="asked for", methods=_methods("fedavg"),
            columns={
                "every character, and padding": _lstm("two_layers_on_8"), "the one after 80": _last_position,
            },
            paper=_main_figure, datasets=("shakespeare",),
        ),
        Experiment(
            name="lstms", title="Other LSTMs", varies="cells", methods=_methods("fedavg", "dp-fedavg", "gdpfed+"),
            columns={
                "128 on 64": _same, "128 on 256": _lstm("lstm_on_256"), "128 on 8": _lstm("lstm_on_8"),
                "two layers of 256 on 8": _lstm("two_layers_on_8"),
            },
            paper=_main_figure, datasets=("shakespeare",),
        ),
        Experiment(
            name="sparsification", title="How much Top-k keeps", varies="kept in each group",
            methods=_methods("gdpfed+"),
            columns={level: _sparsification(level) for level in paper_tables()["sparsification"]},
            paper=_sparsification_figure,
        ),
        _by_columns(
            "budgets", "Scaled privacy budgets", "factor on every budget", "privacy_budget_scale", varied, _budgets, "x"
        ),
        _by_columns(
            "preferences", "How many clients ask for which budget", "strict : medium : lax",
            "preference_distribution", varied, _preferences, "",
        ),
        _by_columns(
            "clipping", "Scaled clip norm", "factor on the clip norm", "clipping_threshold", varied, _clipping, "x"
        ),
        _by_columns(
            "heterogeneity", "Clients with different data", "Dirichlet concentration",
            "data_heterogeneity_cifar10", _methods("fedavg", "dp-fedavg", "idp-fedavg", "gdpfed+", "pooled"),
            _heterogeneity, "",
            # The roles of plays have their own words already.
            datasets=("fmnist", "svhn", "cifar10"),
        ),
    ]  # fmt: skip
    return {experiment.name: experiment for experiment in listed}


# In order of usefulness.
EXPERIMENTS: Mapping[str, Experiment] = _experiments()


def experiment_of(name: str) -> Experiment:
    """The experiment of this name."""
    if name not in EXPERIMENTS:
        known = ", ".join(EXPERIMENTS)
        raise InputError(f"expected an experiment among {known}, got {name!r}{suggestion(name, EXPERIMENTS)}")
    return EXPERIMENTS[name]


def _scaled(task: Task, dataset: str, scale: Scale) -> Task:
    if scale.name == "smoke":
        rounds, cohort, steps, training = _SMOKE[dataset]
        changed = dataclasses.replace(task.training, evaluate_every=max(1, rounds // 2), **training)
        task = dataclasses.replace(task, title=f"{task.title} (smoke)", training=changed)
        # In so few rounds hardly anybody takes part: a usual delta would not be below half that probability.
        task = _set(task, num_rounds=rounds, participation=cohort / len(task.budgets), local_steps=steps, delta=1e-7)
    stated = {"num_rounds": scale.num_rounds, "participation": scale.participation}
    return _set(task, **{name: value for name, value in stated.items() if value is not None})


def cells_of(experiment: Experiment, dataset: str, scale: Scale = FULL) -> list[Cell]:
    """Every cell of the experiment on a data set, those that the paper has first."""
    if dataset not in experiment.datasets:
        return []
    base = _set(_scaled(as_the_paper(load_task(dataset)), dataset, scale), accountant="rdp")
    cells = []
    for method in experiment.methods:
        for label, change in experiment.columns.items():
            asked = _set(base, method=method.name, weights=method.weights or None)
            cells.append(
                Cell(
                    experiment=experiment.name,
                    dataset=dataset,
                    column=label,
                    method=method,
                    task=change(asked),
                    paper=None if method.weights else experiment.paper(dataset, method.name, label),
                )
            )
    return sorted(cells, key=lambda cell: cell.paper is None)
