"""The planner's state: what is planned for whom. As a link, as a command and as settings it is the same thing.

Place: between a query string, a task and `gdpfed plan`. A state has a source (a preset, a text such as 500@0.8,300@2,
or the name of a file in the folder) and the settings that were stated; all others are the source's own.

Guarantees (tests of the same name):
  a_link_is_a_state            the same state from its own link, to the last bit.
  the_command_is_quoted        whatever a file is called, a shell reads one name.
  no_code_is_named_by_a_link   a method that would be imported is refused.
"""

import dataclasses
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from gdpfed.config import option_name
from gdpfed.errors import InputError, suggestion
from gdpfed.planning.methods import METHODS
from gdpfed.planning.settings import PlanSettings
from gdpfed.privacy.budgets import looks_compact, parse_compact
from gdpfed.serve.inside import inside
from gdpfed.tasks.task import DEMONSTRATION, PRESETS, Task, load_task

__all__ = ["CONTROLS", "PlannerState", "field_of", "read_state"]

_FILES = (".csv", ".tsv", ".json", ".parquet", ".toml")


def _number(text: str) -> float:
    return float(text)


def _count(text: str) -> int:
    return int(text)


def _groups(text: str) -> str | int | tuple[float, ...]:
    if text.isdecimal():
        return int(text)
    return text if text.isalpha() else tuple(float(part) for part in text.split(","))


# The settings that the page has controls for, by name, and how their text is read.
CONTROLS: dict[str, Callable[[str], Any]] = {
    "method": str,
    "num_rounds": _count,
    "participation": _number,
    "delta": _number,
    "groups": _groups,
    "against": str,
    "asks": _count,
    "trainings": _number,
    "ask_cost": _number,
    "clip_norm": _number,
    "accountant": str,
}
_SETTINGS = {field.name: field for field in dataclasses.fields(PlanSettings)}


def field_of(name: str) -> dataclasses.Field[Any]:
    """What a setting means."""
    return _SETTINGS[name]


# The name of a control in a link: its option's, without the dashes.
_KEYS = {option_name(field_of(name)).removeprefix("--"): name for name in CONTROLS}


def _text(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(map(_text, value))
    # The shortest text that reads back to the same bits.
    return repr(value) if isinstance(value, float) else str(value)


@dataclass(frozen=True, kw_only=True)
class PlannerState:
    """A source, and what was stated beside it."""

    source: str
    stated: tuple[tuple[str, Any], ...] = ()

    def __post_init__(self) -> None:
        method = dict(self.stated).get("method", "gdpfed+")
        if method not in METHODS:
            known = ", ".join(METHODS)
            raise InputError(f"expected a method among {known}, got {method!r}{suggestion(str(method), METHODS)}")
        self._kind()

    def _kind(self) -> str:
        if self.source in (*PRESETS, DEMONSTRATION):
            return "preset"
        if looks_compact(self.source):
            return "text"
        if self.source.lower().endswith(_FILES):
            return "file"
        raise InputError(
            f"expected a preset ({', '.join(PRESETS)}), a text such as 2000@0.5,2000@3, or the name of a budgets file "
            f"in the folder, got {self.source[:80]!r}{suggestion(self.source, PRESETS)}"
        )

    @property
    def is_of_a_file(self) -> bool:
        """Whether the disk says what the budgets are."""
        return self._kind() == "file"

    def where(self, folder: Path) -> str:
        """The source as the command line takes it."""
        return str(inside(folder, self.source)) if self.is_of_a_file else self.source

    def task(self, folder: Path) -> Task:
        """Budgets and settings."""
        if self.is_of_a_file and not inside(folder, self.source).is_file():
            raise InputError(f"expected a budgets file in the folder, got {self.source!r}, which is not there")
        if self._kind() == "text":
            # Not by `load_task`, which would also take it for the name of a file.
            task = Task(
                title="", budgets=parse_compact(self.source), budgets_source=self.source, settings=PlanSettings()
            )
        else:
            task = load_task(self.where(folder))
        if task.settings.method not in METHODS:
            raise InputError(f"the method {task.settings.method!r} is code of your own: plan it with gdpfed plan")
        return dataclasses.replace(task, settings=dataclasses.replace(task.settings, **dict(self.stated)))

    def command(self, folder: Path, *, words: tuple[str, ...] = ("plan",)) -> str:
        """What prints the same on the command line."""
        options = [part for name, value in self.stated for part in (option_name(field_of(name)), _text(value))]
        return shlex.join(["gdpfed", *words, self.where(folder), *options])

    @property
    def query(self) -> str:
        """The state in a link."""
        names = {name: key for key, name in _KEYS.items()}
        return urlencode([("source", self.source), *((names[name], _text(value)) for name, value in self.stated)])


def read_state(query: Mapping[str, str], *, default: str = PRESETS[0]) -> PlannerState:
    """The state of a link; what a link cannot say is refused."""
    stated = {}
    for key, text in query.items():
        if key == "source":
            continue
        if key not in _KEYS:
            raise InputError(f"unknown setting {key[:80]!r}{suggestion(key, _KEYS)}")
        name = _KEYS[key]
        try:
            stated[name] = CONTROLS[name](text.strip())
        except (ValueError, OverflowError):
            raise InputError(f"expected {key} to be a number, got {text[:80]!r}") from None
    order = list(CONTROLS)
    pairs = tuple(sorted(stated.items(), key=lambda pair: order.index(pair[0])))
    return PlannerState(source=query.get("source", default).strip(), stated=pairs)
