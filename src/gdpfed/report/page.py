"""A report as one HTML file: text, tables, figures, style and script in it, nothing fetched.

Place: the last step for readers. `assets/page.html` has the words: the headline first, then the plan, the curves, the
table, the rounds, and how to make it all again; of a plan alone, what it promises. It reads without scripts; with them,
points show their values.

Guarantees (tests of the same name):
  the_page_is_self_contained     no address in it is loaded, and a policy in it forbids the browser to.
  text_on_the_page_is_escaped    titles, names and files are text, whatever they contain.
  same_runs_same_bytes           no time, no path, no order of files is in a report.
"""

import functools
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

import gdpfed
from gdpfed.privacy.rounding import delta_up, promise, rounded_up
from gdpfed.report import figures, findings, plan_figures, svg
from gdpfed.report.colours import DARK, LIGHT
from gdpfed.report.contents import ReportData
from gdpfed.report.tables import cost_table, method_table, plan_table

__all__ = ["environment", "report_html", "templates", "words_of"]

# What draws, and escapes what it is given by itself.
_DRAWING = (
    svg.key, figures.accuracy_strip, figures.clipped_strip, figures.convergence,
    figures.small_multiples, plan_figures.budget_stairs, plan_figures.cohorts, plan_figures.mechanism_panels,
    plan_figures.promises, plan_figures.spending_panels,
)  # fmt: skip
_COMPUTING = (
    cost_table, delta_up, figures.look, method_table, plan_figures.group_look, plan_figures.group_looks, plan_table,
    promise, rounded_up,
)  # fmt: skip


def report_html(data: ReportData) -> str:
    """The whole file."""
    return environment().get_template("page.html").render(data=data, words=words_of(data))


def words_of(data: ReportData) -> Callable[[str], Markup]:
    """What makes a sentence of a page."""
    return functools.partial(_words, [method.plan.method for method in data.methods])


def templates(*, autoescape: bool, **options: Any) -> Environment:
    """The templates in `assets`; a name that they do not know is an error."""
    return Environment(
        loader=PackageLoader("gdpfed.report", "assets"),
        autoescape=autoescape,  # noqa: S701 - it is on for HTML
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        **options,
    )


@functools.cache
def environment() -> Environment:
    """The templates of pages, with what draws and computes."""
    environment = templates(autoescape=True)
    environment.globals |= {function.__name__: _as_markup(function) for function in _DRAWING}
    environment.globals |= {function.__name__: function for function in _COMPUTING}
    environment.globals |= {
        "cards_in_a_row": lambda cards: min(cards, 3 if -cards % 3 <= -cards % 4 else 4),
        "classes": " ".join(f".{name} {{ color: var(--{name}); }}" for name in LIGHT if name[1:].isdigit()),
        "count": lambda number, noun: f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s",
        "dark": _variables(DARK),
        "floor": lambda value: f"{math.floor(value):,}",
        "findings": findings,
        "light": _variables(LIGHT),
        "version": gdpfed.__version__,
    }
    return environment


def _as_markup(function: Callable[..., str]) -> Callable[..., Markup]:
    return lambda *arguments, **options: Markup(function(*arguments, **options))  # noqa: S704 - escaped where drawn


def _variables(colours: Mapping[str, str]) -> str:
    return " ".join(f"--{name}: {value};" for name, value in colours.items())


def _words(methods: list[str], sentence: str) -> Markup:
    """Escaped; numbers stay with their unit, and names of methods like dp-fedavg on one line."""
    text = str(escape(sentence)).replace(" %", "\N{NO-BREAK SPACE}%")
    names = sorted({str(escape(name)) for name in methods if "-" in name}, key=len, reverse=True)
    if names:
        pattern = "|".join(map(re.escape, names))
        text = re.sub(rf"(?<![\w-])(?:{pattern})(?![\w-])", r'<span class="nb">\g<0></span>', text)
    return Markup(text)  # noqa: S704 - escaped above
