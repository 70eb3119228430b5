"""Settings: fields of frozen dataclasses that say what they mean, and TOML into such dataclasses, strictly.

Place: used wherever a file becomes a value. An unknown key is an error that names the nearest known one; a value of
the wrong type is an error that names the key; what a value may be is the dataclass's own business.

A value may name a function of one's own, as ``package.module:function``. Reading a file never imports it: `imported`
does, when the function is used, and what it imports is run. So a report of somebody else's run runs nothing of theirs.

A setting is documented once, in its field. The docstring of its class, the options of the command line
(`cli/options.py`) and the site's page of settings are made from that.
"""

import dataclasses
import functools
import importlib
import inspect
import sys
import tomllib
import traceback
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

from gdpfed.errors import GdpfedError, InputError, suggestion, unusable

__all__ = [
    "about", "accepted", "called", "checked", "documented", "fit_fields", "from_mapping", "imported", "is_reference",
    "option_name", "parse_toml", "read_toml", "setting", "text_of",
]  # fmt: skip

T = TypeVar("T")

# Of a wrong value in a message.
_LONGEST = 80


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


def option_name(field: dataclasses.Field[Any]) -> str:
    """Its name on the command line."""
    return field.metadata["option"] or "--" + field.name.replace("_", "-")


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
    hints = _hints(cls)  # type: ignore[arg-type]  # classes are hashable
    fields = {field.name: field for field in dataclasses.fields(cls)}  # type: ignore[arg-type]  # a dataclass
    for key in mapping:
        if key not in fields:
            raise InputError(f"unknown key {key!r} in {source}{suggestion(key, fields)}")
    for name, field in fields.items():
        required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if required and name not in mapping:
            raise InputError(f"missing key {name!r} in {source}")
    return cls(**_fitted(mapping, hints, f" in {source}"))


_NO_FIT = object()


@functools.cache
def _hints(of: Any) -> dict[str, Any]:
    try:
        return typing.get_type_hints(of)
    except NameError:
        # Names that are imported for the type checker only, of the package itself.
        package = importlib.import_module("gdpfed")
        return typing.get_type_hints(of, localns={name: getattr(package, name) for name in package.__all__})


def _fitted(given: Mapping[str, Any], hints: Mapping[str, Any], where: str = "") -> dict[str, Any]:
    """The values as their hints want them."""
    values = {name: _fit(value, hints.get(name, Any)) for name, value in given.items()}
    for name, value in values.items():
        if value is _NO_FIT:
            raise InputError(f"expected {name} to be {_describe(hints[name])}, got {_short(given[name])}{where}")
    return values


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) < _LONGEST else f"{text[:_LONGEST]}..."


def fit_fields(settings: Any) -> None:
    """For a dataclass's ``__post_init__``: its fields as a file would have them, 2.0 where 2 was given for a float."""
    for name, value in _fitted(vars(settings), _hints(settings.__class__)).items():
        object.__setattr__(settings, name, value)


def checked(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, which refuses arguments of other kinds than it names, and takes a text for a path."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        bound = signature.bind(*arguments, **named)
        bound.arguments.update(_fitted(bound.arguments, _hints(function)))
        try:
            return function(*bound.args, **bound.kwargs)
        except OSError as error:
            raise unusable(error) from None

    return call


def _fit(value: Any, hint: Any) -> Any:
    """``value`` as the type hint wants it: whole numbers may stand for floats, lists for tuples."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        if Path in arguments and "\0" in str(value):
            return _NO_FIT
        return next((fit for fit in (_fit(value, option) for option in arguments) if fit is not _NO_FIT), _NO_FIT)
    if origin is Literal:
        # A word outside the list passes, so that the dataclass can say which there are.
        return value if isinstance(value, str) else _NO_FIT
    if origin in (tuple, Sequence):
        if not isinstance(value, list | tuple | origin) or isinstance(value, str | bytes):
            return _NO_FIT
        if origin is tuple and Ellipsis not in arguments and len(value) != len(arguments):
            return _NO_FIT
        fitted = tuple(_fit(item, arguments[0]) for item in value)
        return _NO_FIT if _NO_FIT in fitted else fitted
    if hint is Any or not isinstance(origin or hint, type):
        return value
    if hint in (int, float):
        # Also numpy's.
        is_number = isinstance(value, Integral if hint is int else Real) and not isinstance(value, bool)
        try:
            return hint(value) if is_number else _NO_FIT
        except OverflowError:
            return _NO_FIT
    if hint is Path and isinstance(value, str | Path):
        return _NO_FIT if "\0" in str(value) else Path(value)
    return value if isinstance(value, origin or hint) else _NO_FIT


def _describe(hint: Any) -> str:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return " or ".join(_describe(option) for option in arguments if option is not type(None))
    if origin is Literal:
        return "one of " + ", ".join(repr(word) for word in arguments)
    if origin in (tuple, Sequence):
        return f"a list of {_describe(arguments[0])}"
    names = {int: "a whole number", float: "a number", str: "a text", bool: "true or false", Path: "a path"}
    return str(names.get(hint) or getattr(hint, "__name__", hint))


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
