"""Settings: fields of frozen dataclasses that say what they mean, and TOML into such dataclasses, strictly.

Place: used wherever a file becomes a value. An unknown key is an error that names the nearest known one; a value of
the wrong type is an error that names the key; what a value may be is the dataclass's own business.

A value may name a function of one's own, as ``package.module:function``. Reading a file never imports it: `imported`
does, when the function is used, and what it imports is run. So a report of somebody else's run runs nothing of theirs.

A setting is documented once, in its field. The docstring of its class, the options of the command line
(`cli/options.py`) and docs/settings.md are made from that.
"""

import dataclasses
import importlib
import inspect
import sys
import tomllib
import traceback
import types
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

from gdpfed.errors import GdpfedError, InputError, suggestion

__all__ = [
    "about", "accepted", "called", "documented", "from_mapping", "imported", "is_reference", "parse_toml", "read_toml",
    "setting", "text_of",
]  # fmt: skip

T = TypeVar("T")


def about(meaning: str, *, allowed: str = "", option: str | None = None) -> dict[str, Any]:
    """What a field means and may be, in whole sentences, as metadata for `dataclasses.field`."""
    return {"meaning": meaning, "allowed": allowed, "option": option}


def setting(default: T, meaning: str, *, allowed: str = "", option: str | None = "") -> T:
    """A field with a default; ``option`` names it on the command line: by default as the field, None not at all."""
    field: Any = dataclasses.field(default=default, metadata=about(meaning, allowed=allowed, option=option))
    return field  # type: ignore[no-any-return]  # as dataclasses.field: it becomes the default


def text_of(field: dataclasses.Field[Any]) -> str:
    """What the field means, and what it may be."""
    return " ".join(part for part in (field.metadata["meaning"], field.metadata["allowed"]) if part)


def documented(cls: type[T]) -> type[T]:
    """Adds what every field means to the docstring of a dataclass."""
    lines = [f"    {field.name}: {text_of(field)}" for field in dataclasses.fields(cls)]  # type: ignore[arg-type]  # a dataclass
    cls.__doc__ = "\n".join([f"{cls.__doc__ or ''}\n\n    Attributes:", *(f"    {line}" for line in lines)])
    return cls


def read_toml(path: str | Path) -> str:
    """The text of a TOML file."""
    path = Path(path)
    if not path.is_file():
        raise InputError(f"expected a TOML file, got {str(path)!r}, which is not there: check the path")
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise InputError(f"expected TOML text in {str(path)!r}, got binary data") from None
    except OSError as error:
        raise InputError(f"cannot read {str(path)!r}: {error.strerror or error}") from None


def parse_toml(text: str, *, source: str) -> dict[str, Any]:
    """The content of TOML text; ``source`` is for the message."""
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"expected TOML in {source}: {error}") from None


def from_mapping(cls: type[T], mapping: Mapping[str, Any], *, source: str) -> T:
    """Makes a ``cls`` (a dataclass) from the keys of ``mapping``."""
    hints = typing.get_type_hints(cls)
    fields = {field.name: field for field in dataclasses.fields(cls)}  # type: ignore[arg-type]  # a dataclass
    for key in mapping:
        if key not in fields:
            raise InputError(f"unknown key {key!r} in {source}{suggestion(key, fields)}")
    for name, field in fields.items():
        required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if required and name not in mapping:
            raise InputError(f"missing key {name!r} in {source}")
    values = {key: _fit(value, hints[key]) for key, value in mapping.items()}
    for key, value in values.items():
        if value is _NO_FIT:
            raise InputError(f"expected {key} to be {_describe(hints[key])}, got {mapping[key]!r} in {source}")
    return cls(**values)


_NO_FIT = object()


def _fit(value: Any, hint: Any) -> Any:
    """``value`` as the type hint wants it: whole numbers may stand for floats, lists for tuples."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return next((fit for fit in (_fit(value, option) for option in arguments) if fit is not _NO_FIT), _NO_FIT)
    if origin is Literal:
        # A word outside the list passes, so that the dataclass can say which there are.
        return value if isinstance(value, str) else _NO_FIT
    if origin is tuple:
        if not isinstance(value, list | tuple):
            return _NO_FIT
        fitted = tuple(_fit(item, arguments[0]) for item in value)
        return _NO_FIT if _NO_FIT in fitted else fitted
    if hint in (int, float) and isinstance(value, bool):
        return _NO_FIT
    if hint is float and isinstance(value, int):
        return float(value)
    return value if isinstance(hint, type) and isinstance(value, hint) else _NO_FIT


def _describe(hint: Any) -> str:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return " or ".join(_describe(option) for option in arguments if option is not type(None))
    if origin is Literal:
        return "one of " + ", ".join(repr(word) for word in arguments)
    if origin is tuple:
        return f"a list of {_describe(arguments[0])}"
    return {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}.get(hint, str(hint))


def is_reference(value: str) -> bool:
    """Whether a value names a function of one's own, as ``package.module:function``."""
    module, colon, name = value.partition(":")
    return bool(colon) and all(part.isidentifier() for part in (*module.split("."), *name.split(".")))


def imported(reference: str, *, what: str) -> Any:
    """The function that ``package.module:function`` names. Modules of the current folder are found, too.

    This runs the module's code: for files that one has written or read.
    """
    module, _, name = reference.partition(":")
    here = str(Path.cwd())
    added = here not in sys.path
    if added:
        sys.path.insert(0, here)
    try:
        importlib.invalidate_caches()
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part, None)
            if found is None:
                raise InputError(f"expected {name!r} in the module {module!r} for the {what}: check the name")
    except ImportError as error:
        raise InputError(
            f"cannot import the {what} {reference!r} ({error}): call gdpfed where its file lies, or install its package"
        ) from error
    except GdpfedError:
        raise
    except Exception as error:
        raise InputError(f"the module of the {what} {reference!r} fails: {_where(error)}") from error
    finally:
        if added and here in sys.path:
            sys.path.remove(here)
    if not callable(found):
        raise InputError(f"expected a function as the {what} {reference!r}, got {type(found).__name__}")
    return found


def called(function: Callable[..., Any], *arguments: Any, what: str, offered: Mapping[str, Any] | None = None) -> Any:
    """What a function of one's own returns, given of what is offered what it has parameters for; an error of its own
    is an InputError that says where."""
    try:
        return function(*arguments, **accepted(function, offered or {}))
    except GdpfedError:
        raise
    except Exception as error:
        raise InputError(f"{what} fails: {_where(error)}") from error


def _where(error: Exception) -> str:
    """The error in one line, with the last place that it went through."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{place}"


def accepted(function: Callable[..., Any], offered: Mapping[str, Any]) -> dict[str, Any]:
    """Of what is offered, what the function has parameters for."""
    parameters = inspect.signature(function).parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return dict(offered)
    named = {parameter.name for parameter in parameters}
    return {name: value for name, value in offered.items() if name in named}
