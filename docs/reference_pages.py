"""The pages of settings (from the fields of the classes) and of the library (from signatures and docstrings)."""

import ast
import dataclasses
import inspect
import textwrap
from typing import Any

from results_tables import markdown_table

import gdpfed
from gdpfed.cli.options import option_name
from gdpfed.config import text_of
from gdpfed.flower.server.deployment_settings import DeploymentSettings
from gdpfed.planning.plan import Group, Plan
from gdpfed.planning.settings import PlanSettings
from gdpfed.tasks.training_settings import TrainingSettings

__all__ = ["api_page", "settings_page"]

_SETTINGS = {
    PlanSettings: "How to plan: `gdpfed.PlanSettings`, and the top of a task's file.",
    TrainingSettings: "What is trained, and how: `gdpfed.TrainingSettings`, and `[training]` in a task's file.",
    DeploymentSettings: "A deployment: `settings.toml` in the server's home, and options of `gdpfed flower init`.",
}
_VALUES = {Plan: "What a plan's file says: `gdpfed.Plan`.", Group: "What it says of each group: `gdpfed.Group`."}
_WIDTH = 110


def settings_page() -> str:
    """Every setting of a plan, a training and a deployment, and what is in a plan."""
    parts = [
        "# Settings\n\nWritten by `docs/generate.py` from the fields of the classes; `help(gdpfed.PlanSettings)` shows "
        "the same. A setting is a key of a task's TOML file, an argument in Python, and an option of the commands that "
        "plan or train: `gdpfed plan`, `plan compare`, `train`, `compare`, `audit` and `flower plan`.\n"
    ]
    for cls, about in _SETTINGS.items():
        rows = [
            (
                f"`{field.name}`",
                "" if field.metadata["option"] is None else f"`{option_name(field)}`",
                "" if field.default in (None, ()) else f"`{field.default}`",
                text_of(field),
            )
            for field in dataclasses.fields(cls)
        ]
        parts.append(f"## {cls.__name__}\n\n{about}\n\n{markdown_table(('key', 'option', 'default', 'meaning'), rows)}")
    for value, about in _VALUES.items():
        meanings = [(f"`{field.name}`", text_of(field)) for field in dataclasses.fields(value)]
        parts.append(f"## {value.__name__}\n\n{about}\n\n{markdown_table(('key', 'meaning'), meanings)}")
    return "\n".join(parts)


def api_page() -> str:
    """Every public name."""
    names = sorted(set(gdpfed.__all__) - {"__version__"}, key=str.lower)
    parts = [
        "# Library\n\nWritten by `docs/generate.py` from signatures and docstrings; `help(gdpfed.make_plan)` shows the "
        f"same. These {len(names)} names are public, what other modules export may change.\n"
    ]
    for name in names:
        value = getattr(gdpfed, name)
        parts.append(f"## {name}\n")
        if isinstance(value, dict):
            parts.append(f"What `PlanSettings.method` may be: {', '.join(f'`{key}`' for key in value)}.\n")
        elif inspect.isclass(value):
            parts += _class(value)
        else:
            parts += [_code(name, *_arguments(_parsed(value))), _text(value)]
    return "\n".join(parts)


def _class(cls: type) -> list[str]:
    """A class: how it is made, what it means, and its own properties and methods."""
    node = _parsed(cls)
    parts = []
    if dataclasses.is_dataclass(cls):
        parts.append(_code(cls.__name__, _fields(cls, node), None))
    parts.append(_text(cls))
    for member in node.body:
        if not isinstance(member, ast.FunctionDef) or member.name.startswith("_"):
            continue
        value = inspect.getattr_static(cls, member.name)
        if isinstance(value, property):
            parts.append(f"`{cls.__name__}.{member.name}`: {' '.join((inspect.getdoc(value) or '').split())}\n")
        else:
            parts += [_code(f"{cls.__name__}.{member.name}", *_arguments(member)), _text(getattr(cls, member.name))]
    return parts


def _parsed(value: Any) -> Any:
    return ast.parse(textwrap.dedent(inspect.getsource(value))).body[0]


def _fields(cls: Any, node: ast.ClassDef) -> list[str]:
    """Arguments of a dataclass. Defaults are as they are written, or what `field` and `setting` were given."""
    written = {each.target.id: each for each in node.body if isinstance(each, ast.AnnAssign)}  # type: ignore[union-attr]
    listed = ["*"]
    for field in dataclasses.fields(cls):
        each = written[field.name]
        default = f" = {ast.unparse(each.value)}" if each.value is not None else ""
        if field.metadata:
            default = "" if field.default is dataclasses.MISSING else f" = {field.default!r}"
        listed.append(f"{field.name}: {ast.unparse(each.annotation)}{default}")
    return listed


def _arguments(node: ast.FunctionDef) -> tuple[list[str], str | None]:
    """The arguments of a function as they are written, and what it returns."""
    given = [*node.args.posonlyargs, *node.args.args]
    defaults = [None] * (len(given) - len(node.args.defaults)) + list(node.args.defaults)
    pairs = [pair for pair in zip(given, defaults, strict=True) if pair[0].arg not in ("self", "cls")]
    listed = [_argument(*pair) for pair in pairs]
    if node.args.vararg is not None:
        listed.append("*" + ast.unparse(node.args.vararg))
    elif node.args.kwonlyargs:
        listed.append("*")
    listed += [_argument(*pair) for pair in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)]
    return listed, None if node.returns is None else ast.unparse(node.returns).strip("'")


def _argument(argument: ast.arg, default: ast.expr | None) -> str:
    return ast.unparse(argument) + ("" if default is None else f" = {ast.unparse(default)}")


def _code(name: str, arguments: list[str], returns: str | None) -> str:
    arrow = "" if returns is None else f" -> {returns}"
    line = f"{name}({', '.join(arguments)}){arrow}"
    if len(line) > _WIDTH:
        line = "\n".join([f"{name}(", *(f"    {argument}," for argument in arguments), f"){arrow}"])
    return f"```python\n{line}\n```\n"


def _text(value: Any) -> str:
    """A docstring; the attributes of settings as a list."""
    before, _, attributes = (inspect.getdoc(value) or "").partition("Attributes:\n")
    listed = [
        f"- `{name}`: {text}" for name, _, text in (line.strip().partition(": ") for line in attributes.splitlines())
    ]
    return "\n\n".join(part for part in (before.strip(), "\n".join(listed)) if part) + "\n"
