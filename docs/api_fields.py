"""For the site's library pages: a class of settings is shown with the defaults and texts of its fields.

Griffe reads sources without running them, so it cannot know what `gdpfed.config.setting` makes of a field. This
extension asks the classes themselves, for the public ones.
"""

import dataclasses
import importlib
import inspect
from typing import Any

import griffe

import gdpfed

__all__ = ["Fields"]


class Fields(griffe.Extension):
    """Docstrings and defaults of public dataclasses, as they are at run time."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """When all is read: changes the classes that `gdpfed` exports."""
        for module, names in gdpfed._NAMES_OF.items():
            for name in names:
                value = getattr(importlib.import_module(module), name)
                if dataclasses.is_dataclass(value) and isinstance(value, type):
                    _complete(pkg[f"{module.removeprefix('gdpfed.')}.{name}"], value)


def _complete(shown: griffe.Class, value: Any) -> None:
    text = inspect.getdoc(value)
    if text:
        shown.docstring = griffe.Docstring(text, parent=shown)
    defaults = {field.name: field.default for field in dataclasses.fields(value) if field.metadata}
    for parameter in shown.parameters:
        if parameter.name in defaults:
            default = defaults[parameter.name]
            parameter.default = None if default is dataclasses.MISSING else repr(default)
