"""Where a plan's input comes from: a preset, a TOML file of one's own, a budgets file, or a compact text.

Place: the entrance. Presets are the paper's four configurations, one TOML file each in `presets/`; a user's file has
the same keys: a ``title``, ``budgets`` (compact text, or the path of a budgets file beside it), and any of
`PlanSettings`.
"""

import dataclasses
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import tomli_w

from gdpfed.config import documented, fit_fields, from_mapping, is_reference, parse_toml, read_toml, setting
from gdpfed.errors import InputError, expect, expect_word, suggestion
from gdpfed.planning.settings import PlanSettings
from gdpfed.privacy.budgets import Budgets, looks_compact, parse_compact, read_budgets

__all__ = ["DEMONSTRATION", "LOSS_NAMES", "PRESETS", "Task", "TrainingSettings", "load_task", "task_to_toml"]

# The paper's configurations, and the one whose data ships inside the package.
PRESETS = ("fmnist", "svhn", "cifar10", "shakespeare")
DEMONSTRATION = "fmnist-mini"
# Those of `losses.py`, which needs torch.
LOSS_NAMES = ("cross-entropy", "mse", "bce-with-logits", "next-token")


@documented
@dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """What is trained on which data, and how, apart from what the plan needs to know."""

    dataset: str = setting(
        "fmnist-mini",
        "A data set of `gdpfed data list`, or your own as package.module:function, which is imported, hence run.",
    )
    model: str = setting(
        "small-cnn", "A model of `gdpfed.tasks.models`, by name, or your own as package.module:function."
    )
    loss: str = setting(
        "cross-entropy", f"What clients minimise: {', '.join(LOSS_NAMES)}, or your own as package.module:function."
    )
    metrics: tuple[str, ...] = setting(
        (), "Functions of (outputs, targets) of the test set, as package.module:function, separated by commas."
    )
    model_width: int | None = setting(
        None, "Channels, or characters looked at, of a model that has a width. Default: the model's."
    )
    partition: Literal["iid", "dirichlet", "natural"] = setting(
        "iid", "Who holds which data: 'iid', 'dirichlet' (labels differ) or 'natural' (as it was collected)."
    )
    concentration: float = setting(
        0.5, "With partition 'dirichlet': the smaller, the more the clients' labels differ.", allowed="Above 0."
    )
    min_examples: int = setting(
        1, "With partition 'dirichlet': every client has at least so many examples.", allowed="At least 1."
    )
    batch_size: int = setting(10, "Examples of a local step.", allowed="At least 1.")
    momentum: float = setting(0.0, "Momentum of a client's local steps.", allowed="At least 0, below 1.")
    learning_rate_decay: float = setting(
        0.99, "Factor on the learning rate after each round.", allowed="Above 0, at most 1."
    )
    evaluate_every: int = setting(1, "Rounds between evaluations.", allowed="At least 1.")
    secure: bool = setting(False, "Sums by the secure aggregation protocol, with integer noise.")
    dropout: float = setting(
        0.0, "With secure: fraction of clients that vanish during a sum.", allowed="At least 0, below 0.5."
    )
    colluders: float = setting(
        0.0,
        "With secure: fraction of a cohort that may tell the server their noise.",
        allowed="At least 0, below 0.5.",
    )
    validation: int = setting(
        0,
        "So many training examples, the last, are taken from the clients and stand for the test set: settings can be "
        "chosen without looking at it.",
        allowed="At least 0.",
    )
    group_skew: float = setting(
        0.0,
        "From 0 (budgets have nothing to do with data) to 1 (clients with small labels have the strict ones).",
        allowed="At least 0, at most 1.",
    )

    def __post_init__(self) -> None:
        fit_fields(self)
        if not is_reference(self.loss) and self.loss != "own":
            expect_word("a loss among", self.loss, LOSS_NAMES)
        expect_word("partition", self.partition, ("iid", "dirichlet", "natural"))
        for name, is_right, expected in (
            ("batch_size", self.batch_size >= 1, "batch_size >= 1"),
            ("min_examples", self.min_examples >= 1, "min_examples >= 1"),
            ("evaluate_every", self.evaluate_every >= 1, "evaluate_every >= 1"),
            ("concentration", 0 < self.concentration < float("inf"), "a finite concentration > 0"),
            ("momentum", 0 <= self.momentum < 1, "0 <= momentum < 1"),
            ("validation", self.validation >= 0, "validation >= 0"),
            ("group_skew", 0 <= self.group_skew <= 1, "0 <= group_skew <= 1"),
            ("dropout", 0 <= self.dropout < 0.5, "0 <= dropout < 0.5"),
            ("colluders", 0 <= self.colluders < 0.5, "0 <= colluders < 0.5"),
            ("learning_rate_decay", 0 < self.learning_rate_decay <= 1, "0 < learning_rate_decay <= 1"),
        ):
            expect(is_right, expected, **{name: getattr(self, name)})
        for name in ("dropout", "colluders"):
            if getattr(self, name) and not self.secure:
                raise InputError(f"expected {name} with secure = true only: other sums lose nobody")


@dataclass(frozen=True, kw_only=True, eq=False)
class Task:
    """Budgets, the settings to plan them with, and what to train.

    ``budgets_source`` is where the budgets came from: a compact text, or the path of a file. ``stated`` names the
    settings that the file gives, also where it gives what would have been taken without it, and the data set where it
    gives one; a run's own file gives all.
    """

    title: str
    budgets: Budgets
    budgets_source: str
    settings: PlanSettings
    training: TrainingSettings = TrainingSettings()
    stated: frozenset[str] = frozenset()


def load_task(source: str) -> Task:
    """Finds out what ``source`` is, and reads it."""
    if source in (*PRESETS, DEMONSTRATION):
        text = resources.files("gdpfed.tasks").joinpath("presets", f"{source}.toml").read_text(encoding="utf-8")
        return _task(text, source=f"preset {source!r}", folder=Path())
    path = Path(source)
    if path.suffix.lower() == ".toml":
        return _task(read_toml(path), source=repr(source), folder=path.parent)
    if not path.is_file() and looks_compact(source):
        return Task(title=source, budgets=parse_compact(source), budgets_source=source, settings=PlanSettings())
    if path.exists() or path.suffix:
        return Task(title=path.name, budgets=read_budgets(path), budgets_source=source, settings=PlanSettings())
    raise InputError(
        f"expected a preset ({', '.join(PRESETS)}), a .csv, .json, .parquet or .toml file, or a text such as "
        f"2000@0.5,2000@3, got {source!r}{suggestion(source, PRESETS)}"
    )


def _task(text: str, *, source: str, folder: Path) -> Task:
    content = parse_toml(text, source=source)
    budgets = content.pop("budgets", None)
    if not isinstance(budgets, str):
        raise InputError(
            f'expected budgets = "2000@0.5,..." or the path of a budgets file in {source}, got {budgets!r}'
        )
    title = content.pop("title", source)
    if not isinstance(title, str):
        raise InputError(f"expected title to be a text, got {title!r} in {source}")
    training = content.pop("training", {})
    if not isinstance(training, dict):
        raise InputError(f"expected a table [training] in {source}, got {training!r}")
    compact = looks_compact(budgets)
    return Task(
        title=title,
        budgets=parse_compact(budgets) if compact else read_budgets(folder / budgets),
        budgets_source=budgets if compact else str(folder / budgets),
        settings=from_mapping(PlanSettings, content, source=source),
        training=from_mapping(TrainingSettings, training, source=f"{source}, [training]"),
        stated=frozenset(content) | (training.keys() & {"dataset"}),
    )


def task_to_toml(task: Task) -> str:
    """The task as a file that `load_task` reads back."""
    # Files of runs that do not use what came later stay as they were before it: names follow from them.
    later = {"averaging", "validation", "group_skew", "against", "ask_cost", "correlated_noise", "loss", "metrics"}
    if not task.training.secure:
        later |= {"secure", "dropout", "colluders"}
    settings, training = (
        {
            field.name: value
            for field in dataclasses.fields(part)
            if (value := getattr(part, field.name)) is not None and not (field.name in later and value == field.default)
        }
        for part in (task.settings, task.training)
    )
    content: dict[str, Any] = {"title": task.title, "budgets": task.budgets_source, **settings, "training": training}
    return tomli_w.dumps(content)
