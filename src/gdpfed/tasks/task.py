"""Where a plan's input comes from: a preset, a TOML file of one's own, a budgets file, or a compact text.

Place: the entrance. Presets are the paper's four configurations, one TOML file each in `presets/`; a user's file has
the same keys: a ``title``, ``budgets`` (compact text, or the path of a budgets file beside it), and any of
`PlanSettings`.
"""

from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from gdpfed.config import from_mapping, parse_toml, read_toml
from gdpfed.errors import InputError, suggestion
from gdpfed.planning.settings import PlanSettings
from gdpfed.privacy.budgets import Budgets, looks_compact, parse_compact, read_budgets

__all__ = ["PRESETS", "Task", "load_task"]

PRESETS = ("fmnist", "svhn", "cifar10", "shakespeare")


@dataclass(frozen=True, kw_only=True, eq=False)
class Task:
    """Budgets, and the settings to plan them with."""

    title: str
    budgets: Budgets
    settings: PlanSettings


def load_task(source: str) -> Task:
    """Finds out what ``source`` is, and reads it."""
    if source in PRESETS:
        text = resources.files("gdpfed.tasks").joinpath("presets", f"{source}.toml").read_text(encoding="utf-8")
        return _task(text, source=f"preset {source!r}", folder=Path())
    path = Path(source)
    if path.suffix.lower() == ".toml":
        return _task(read_toml(path), source=repr(source), folder=path.parent)
    if not path.is_file() and looks_compact(source):
        return Task(title=source, budgets=parse_compact(source), settings=PlanSettings())
    if path.is_file() or path.suffix:
        return Task(title=path.name, budgets=read_budgets(path), settings=PlanSettings())
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
    return Task(
        title=title,
        budgets=parse_compact(budgets) if looks_compact(budgets) else read_budgets(folder / budgets),
        settings=from_mapping(PlanSettings, content, source=source),
    )
