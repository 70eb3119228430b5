"""Where a plan's input comes from: a preset, a TOML file of one's own, a budgets file, or a compact text.

Place: the entrance. Presets are the paper's four configurations, one TOML file each in `presets/`; a user's file has
the same keys: a ``title``, ``budgets`` (compact text, or the path of a budgets file beside it), and any of
`PlanSettings`; and a table ``[training]`` with any of `TrainingSettings`.
"""

import dataclasses
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

import tomli_w

from gdpfed.config import from_mapping, parse_toml, read_toml
from gdpfed.errors import InputError, suggestion
from gdpfed.planning.settings import PlanSettings
from gdpfed.privacy.budgets import Budgets, looks_compact, parse_compact, read_budgets
from gdpfed.tasks.training_settings import TrainingSettings

__all__ = ["DEMONSTRATION", "PRESETS", "Task", "load_task", "task_to_toml"]

# The paper's configurations, and the one whose data ships inside the package.
PRESETS = ("fmnist", "svhn", "cifar10", "shakespeare")
DEMONSTRATION = "fmnist-mini"


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
    training: TrainingSettings = field(default_factory=TrainingSettings)
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
