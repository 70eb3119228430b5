"""Templates of the pages: the report's, and those beside this module.

Place: between what is known and what a browser shows. Everything is escaped, as in the report; the style sheet and the
script for figures are the report's own, as files.

Guarantees (tests of the same name):
  script_in_names_is_text   names of files, runs, groups and clients are shown, whatever they contain.
"""

import functools
from pathlib import Path
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader
from markupsafe import Markup

from gdpfed.report.page import environment
from gdpfed.serve import figures

__all__ = ["asset", "rendered"]

_TYPES = {".css": "text/css", ".js": "text/javascript"}
# Where each part of the site is, in the order of its menu.
MENU = (("/", "Overview"), ("/plan", "Plan"), ("/runs", "Runs"), ("/ledger", "Ledger"), ("/deployment", "Deployment"))
_DRAWING = (
    figures.frontier_chart, figures.left_chart, figures.mini_budgets, figures.signal_strip,
)  # fmt: skip


@functools.cache
def _environment() -> Environment:
    report = environment()
    loaders = [PackageLoader("gdpfed.serve", "assets"), PackageLoader("gdpfed.report", "assets")]
    pages = report.overlay(loader=ChoiceLoader(loaders))
    drawing = {function.__name__: _as_markup(function) for function in _DRAWING}
    pages.globals = {**report.globals, **drawing, "menu": MENU}
    return pages


def _as_markup(function: Any) -> Any:
    return lambda *arguments, **options: Markup(function(*arguments, **options))  # noqa: S704 - escaped where drawn


def rendered(template: str, **content: Any) -> str:
    """A page, or a part of one."""
    return _environment().get_template(template).render(**content)


@functools.cache
def asset(name: str) -> tuple[str, str] | None:
    """The content and type of a file that pages load, or None: of the package only, by its plain name."""
    if name == "style.css":
        # The report's, whose print rules name its stamp.
        return rendered("style.css", data={"stamp": "gdpfed serve"}), _TYPES[".css"]
    if name == "figures.js":
        return rendered("script.js"), _TYPES[".js"]
    path = Path(__file__).parent / "assets" / Path(name).name
    if path.suffix not in _TYPES or path.name != name or not path.is_file():
        return None
    return path.read_text(encoding="utf-8"), _TYPES[path.suffix]
