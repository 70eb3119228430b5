"""`gdpfed report` and `gdpfed plot`: finished runs, or a plan, for someone who does not read logs."""

import sys
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from gdpfed.cli import options
from gdpfed.cli.show import tell
from gdpfed.errors import InputError
from gdpfed.files import check_writable, write_whole

__all__ = ["plot_runs", "report_runs"]

Runs = Annotated[list[Path], Argument(metavar="RUN...", help="Run folders, or folders of runs, of one task.")]
Reported = Annotated[
    list[Path],
    Argument(
        metavar="RUN...",
        help="Run folders, or folders of runs, of one task; or a plan, or what gdpfed plan takes: nothing is trained.",
    ),
]
Partial = Annotated[bool, Option("--partial", help="Report unfinished runs too, marked as unfinished.")]

_SUFFIXES = {".html": "html", ".htm": "html", ".md": "md", ".json": "json"}


def report_runs(
    runs: Reported,
    out: Annotated[Path | None, Option("--out", "-o", help="File: .html, .md or .json. Default: report.html.")] = None,
    as_markdown: Annotated[bool, Option("--md", help="Markdown; printed unless --out names a file.")] = False,
    as_json: Annotated[bool, Option("--json", help="JSON; printed unless --out names a file.")] = False,
    partial: Partial = False,
) -> None:
    """One self-contained page about runs, or about a plan.

    Accuracy, promises, what was spent against whom, what an adversary could conclude, and how to repeat it.
    """
    kind = _kind(out, as_markdown=as_markdown, as_json=as_json)
    if out is None and kind == "html":
        out = Path("report.html")
    from gdpfed.report.load import is_planned, load_planned, load_report
    from gdpfed.report.page import report_html
    from gdpfed.report.texts import report_json, report_markdown

    if out is not None:
        check_writable(out)
    data = load_planned(str(runs[0])) if is_planned(runs) else load_report(runs, partial=partial)
    text = {"html": report_html, "md": report_markdown, "json": report_json}[kind](data)
    if out is None:
        sys.stdout.write(text)
        return
    content = text.encode()
    write_whole(out, content)
    told = {"file": str(out), "title": data.title, "methods": len(data.methods), "runs": len(data.runs)}
    tell(
        as_json,
        told,
        f"{out}: {data.title}, methods: {len(data.methods)}, runs: {len(data.runs)}, {len(content) / 1000:,.0f} kB; "
        f"{data.stamp}",
    )


def _kind(out: Path | None, *, as_markdown: bool, as_json: bool) -> str:
    if as_markdown and as_json:
        raise InputError("expected --md or --json, got both: call it twice")
    asked = "md" if as_markdown else "json" if as_json else None
    named = None if out is None else _SUFFIXES.get(out.suffix.lower())
    if out is not None and named is None and asked is None:
        raise InputError(f"expected a file that ends in .html, .md or .json, got {str(out)!r}: add the ending")
    if named is not None and asked is not None and named != asked:
        raise InputError(f"expected one format, got --{asked} and {str(out)!r}: leave one out")
    return asked or named or "html"


def plot_runs(
    runs: Runs,
    out: Annotated[Path, Option("--out", "-o", help="Folder for the pictures; made if it is not there.")],
    kind: Annotated[str, Option("--format", help="svg, png or pdf.")] = "svg",
    partial: Partial = False,
    as_json: options.Json = False,
) -> None:
    """Figures of runs for a paper.

    Convergence, final accuracies, rates and noise, participation.
    """
    from gdpfed.report.load import load_report
    from gdpfed.report.report_pictures import report_figures, write_figures

    pictures = write_figures(report_figures(load_report(runs, partial=partial)), out, kind=kind.lower())
    tell(as_json, [str(path) for path in pictures], *pictures)
