"""Options of the command line: those of settings, made from the settings' fields, and those that commands share.

A setting that is added to `PlanSettings` or `TrainingSettings` is an option of every command that plans or trains, with
the text of its field.
"""

import csv
import dataclasses
import functools
import importlib.util
import inspect
import json
import types
import typing
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, get_args, get_origin

import typer

from gdpfed.config import option_name, setting, text_of
from gdpfed.errors import InputError, MissingExtraError, expect
from gdpfed.planning.settings import PlanSettings
from gdpfed.tasks.task import Task, load_task
from gdpfed.tasks.training_settings import TrainingSettings

if TYPE_CHECKING:
    from gdpfed.training.clients.engines import Engine

__all__ = ["Asked", "Json", "Seed", "Workforce", "check_count", "need", "option", "option_name", "with_settings"]

T = TypeVar("T")

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Seed = Annotated[int, typer.Option("--seed", help="Everything random follows from it.")]

_MOST = 1000

# What a task states and an option may change: shown in a part of its own, without the default, which is the task's.
_PANELS: dict[type, str] = {PlanSettings: "Settings of the plan", TrainingSettings: "Settings of the training"}


@dataclass(frozen=True, kw_only=True)
class Workforce:
    """Who trains, and where the data is. None of it changes the result, but for a GPU's rounding."""

    workers: int | None = setting(None, "How many train at once. Default: one for each core (or GPU).")
    engine: str = setting("local", "Who trains: local (this machine) or ray (a Ray cluster). The same result.")
    ray_address: str | None = setting(None, "HOST:PORT of the cluster. Default: $RAY_ADDRESS, or this machine's.")
    device: str = setting("cpu", "cpu, cuda or auto (a GPU where there is one).")
    data_dir: Path | None = setting(None, "Folder with the data files. Default: $GDPFED_DATA.")

    def __post_init__(self) -> None:
        if self.workers is not None:
            check_count("--workers", self.workers)

    @property
    def trainer(self) -> "Engine":
        """The engine that trains."""
        from gdpfed.training.clients.engines import Engine

        return Engine(name=self.engine, ray_address=self.ray_address, device=self.device)

    @property
    def how(self) -> dict[str, Any]:
        """For `runs.simulate.prepare`."""
        return {"num_workers": self.workers, "engine": self.trainer, "data_dir": self.data_dir}

    @property
    def place(self) -> str:
        """Where they train, in words; nothing for this machine's processors."""
        return "" if (self.engine, self.device) == ("local", "cpu") else self.trainer.place


@dataclass(frozen=True)
class Asked:
    """The settings that were stated on the command line, by name."""

    stated: dict[str, Any]

    def applied(self, settings: T) -> T:
        """The settings with what was stated in place of theirs."""
        names = {field.name for field in dataclasses.fields(settings)}  # type: ignore[arg-type]  # a dataclass
        changes = {name: value for name, value in self.stated.items() if name in names}
        return dataclasses.replace(settings, **changes)  # type: ignore[type-var]  # a dataclass

    def workforce(self) -> Workforce:
        """Who trains; what is not there is refused."""
        workforce = self.applied(Workforce())
        workforce.trainer.check()
        return workforce

    def task(self, source: str) -> Task:
        """The task of ``source`` with what was stated in place of its own."""
        task = load_task(source)
        training = task.training
        if self.stated.get("model", training.model) != training.model:
            # The width was the other model's.
            training = dataclasses.replace(training, model_width=None)
        return dataclasses.replace(
            task,
            settings=self.applied(task.settings),
            training=self.applied(training),
            stated=task.stated.union(self.stated),
        )


def check_count(option: str, count: int) -> None:
    """Refuses what nobody has so many of."""
    expect(1 <= count <= _MOST, f"{option} from 1 to {_MOST}", **{option: count})


def option(settings: type, name: str) -> Any:
    """The option of one setting, for commands that take single ones."""
    (field,) = (field for field in dataclasses.fields(settings) if field.name == name)
    return typer.Option(option_name(field), help=text_of(field))


def with_settings(
    *classes: type, without: Collection[str] = ()
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Gives a command an option for each setting of ``classes``. What was stated comes as its first argument."""
    offered: dict[str, inspect.Parameter] = {}
    readers: dict[str, Callable[[Any], Any]] = {}
    for cls in classes:
        hints = typing.get_type_hints(cls)
        for field in dataclasses.fields(cls):
            if field.metadata["option"] is None or field.name in without:
                continue
            kind, readers[field.name] = _read_as(hints[field.name], option_name(field))
            declared = typer.Option(option_name(field), help=text_of(field), rich_help_panel=_PANELS.get(cls))
            offered[field.name] = inspect.Parameter(
                field.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=None if cls in _PANELS else field.default,
                annotation=Annotated[kind | None, declared],
            )

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def called(**given: Any) -> None:
            stated = {name: given.pop(name) for name in offered}
            asked = Asked({name: readers[name](value) for name, value in stated.items() if value is not None})
            command(asked, **given)

        _, *own = inspect.signature(command).parameters.values()
        parameters = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own]
        called.__signature__ = inspect.Signature([*parameters, *offered.values()])  # type: ignore[attr-defined]
        return called

    return decorate


def _read_as(hint: Any, name: str) -> tuple[Any, Callable[[Any], Any]]:
    """The type that the option has on the command line, and what makes the setting's value of it."""
    choices = get_args(hint) if get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    kinds = [str if get_origin(kind) is Literal else kind for kind in choices if kind is not type(None)]
    if kinds == [tuple[tuple[str, ...], ...]]:
        return Path, _read_lists
    if kinds == [tuple[str, ...]]:
        return str, lambda text: tuple(word.strip() for word in text.split(",") if word.strip())
    if len(kinds) == 1 and get_origin(kinds[0]) is None:
        return kinds[0], lambda value: value
    return str, lambda text: _word_or_numbers(text, kinds, name)


def _word_or_numbers(text: str, kinds: Collection[Any], name: str) -> Any:
    """A number or numbers where there are some; a word is left to the settings, which know the words."""
    if int in kinds and text.strip().isdecimal():
        return int(text)
    if str in kinds and not any(character.isdigit() for character in text):
        return text
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise InputError(f"expected numbers separated by commas, got {name} {text!r}") from None


def _read_lists(path: Path) -> tuple[tuple[str, ...], ...]:
    """Names from a file: a list on each line, or a JSON list of lists."""
    if not path.is_file():
        raise InputError(f"expected a file of linked clients, got {str(path)!r}, which is not there: check the path")
    try:
        text = path.read_text(encoding="utf-8-sig")
        is_json = path.suffix.lower() == ".json"
        rows = json.loads(text) if is_json else [row for row in csv.reader(text.splitlines()) if row]
    except (ValueError, RecursionError, csv.Error):
        raise InputError(f"expected lines of client names, or a JSON list of lists, in {str(path)!r}") from None
    if not (isinstance(rows, list) and rows and all(isinstance(row, list) and row for row in rows)):
        raise InputError(f"expected at least one line of client names in {str(path)!r}")
    return tuple(tuple(str(client).strip() for client in row) for row in rows)


def need(package: str, *, extra: str, purpose: str) -> None:
    """Says how to get a package where it is missing, without importing it."""
    if importlib.util.find_spec(package) is None:
        raise MissingExtraError(package=package, extra=extra, purpose=purpose)
