"""`gdpfed data`: which data sets are here, fetch one, check them."""

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, TaskID, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from rich.progress import Progress as ProgressBar

from gdpfed.cli import options
from gdpfed.cli.show import console, print_json, table
from gdpfed.errors import InputError
from gdpfed.tasks.catalogue import CATALOGUE, Source, source_of
from gdpfed.tasks.downloads import Progress
from gdpfed.tasks.sources import Found, find, places, read
from gdpfed.tasks.sources import get as get_source

__all__ = ["data_app"]

data_app = typer.Typer(
    help="Data sets: what is here, fetch, check.", add_completion=False, pretty_exceptions_enable=False
)

DataDir = Annotated[
    Path | None,
    typer.Option("--data-dir", help="Folder with data files, or with a folder for each set. Default: $GDPFED_DATA."),
]
Name = Annotated[str, typer.Argument(help="Data set: " + ", ".join(CATALOGUE) + ".")]


def _found(source: Source, data_dir: Path | None) -> list[Found]:
    """Every complete set of files nearby, the one in use first."""
    looked = [find(source, place) for place in places(source, data_dir=data_dir)]
    return [found for found in looked if found is not None]


@data_app.command("list")
def list_sets(data_dir: DataDir = None, as_json: options.Json = False) -> None:
    """Every data set, and whether it is here. Reads no file: 'check' does."""
    here = {name: _found(source, data_dir)[:1] for name, source in CATALOGUE.items()}
    if as_json:
        print_json(
            [
                {
                    "name": source.name,
                    "title": source.title,
                    "num_train": source.num_train,
                    "num_test": source.num_test,
                    "licence": source.licence,
                    "place": here[source.name][0].kind if here[source.name] else None,
                    "folder": str(here[source.name][0].folder) if here[source.name] else None,
                    "addresses": source.addresses,
                }
                for source in CATALOGUE.values()
            ]
        )
        return
    made = table(
        "Data sets",
        ["name", "train", "test", "what it is", "licence", "here"],
        [
            [
                source.name,
                f"{source.num_train:,}",
                f"{source.num_test:,}",
                source.title,
                source.licence,
                _where(here[source.name][0]) if here[source.name] else f"no: gdpfed data get {source.name}",
            ]
            for source in CATALOGUE.values()
        ],
    )
    for column in made.columns[3:]:
        column.justify, column.no_wrap, column.overflow = "left", False, "fold"
    console().print(made)


def _where(found: Found) -> str:
    return "in the package" if found.kind == "package" else f"{found.kind}: {found.folder}"


@data_app.command("get")
def get_set(
    name: Name,
    data_dir: Annotated[
        Path | None,
        typer.Option("--data-dir", help="Put the files into this folder. Default: the cache, if they are not here."),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Make sure that a data set is here and whole: look nearby, else download and check it."""
    source = source_of(name)
    with _progress() as progress:
        raw = get_source(source, data_dir=data_dir, progress=progress)
    if as_json:
        print_json(
            {
                "name": source.name,
                "place": raw.found.kind,
                "folder": str(raw.found.folder),
                "files": [str(path) for path in raw.found.paths],
                "differences": raw.differences,
            }
        )
        return
    state = "not the official files" if raw.differences else "content checked"
    console().print(f"{source.name}: {state}; {_where(raw.found)}", soft_wrap=True)


@data_app.command("check")
def check_sets(
    name: Annotated[str | None, typer.Argument(help="Data set. Default: all that are here.")] = None,
    data_dir: DataDir = None,
    as_json: options.Json = False,
) -> None:
    """Read every file of every copy that is here and compare its SHA-256; exit code 2 if one is damaged."""
    sources = tuple(CATALOGUE.values()) if name is None else (source_of(name),)
    rows = []
    for source in sources:
        for found in _found(source, data_dir):
            try:
                different = "; ".join(read(source, found).differences)
                state, detail = ("not official", different) if different else ("ok", "")
            except InputError as error:
                state, detail = "damaged", str(error)
            rows.append(
                {
                    "name": source.name,
                    "place": found.kind,
                    "folder": str(found.folder),
                    "state": state,
                    "detail": detail,
                }
            )
    if not rows:
        raise InputError(f"expected files of {name!r} to check, found none: run 'gdpfed data get {name}'")
    if as_json:
        print_json(rows)
    else:
        out = console()
        made = table(
            "Files here, by SHA-256 of their content",
            ["name", "state", "place", "folder"],
            [[row["name"], row["state"], row["place"], row["folder"]] for row in rows],
        )
        for column in made.columns[1:]:
            column.justify, column.no_wrap, column.overflow = "left", False, "fold"
        out.print(made)
        for row in rows:
            if row["state"] == "not official":
                out.print(f"{row['name']}: {row['detail']}", soft_wrap=True)
    damaged = [row["detail"] for row in rows if row["state"] == "damaged"]
    if damaged:
        raise InputError("; ".join(damaged))


@contextlib.contextmanager
def _progress() -> Iterator[Progress]:
    """A bar on a terminal, a line for each tenth elsewhere; on standard error, so that --json stays JSON."""
    if not sys.stderr.isatty():
        yield _lines()
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with ProgressBar(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True) as bar:
        tasks: dict[str, TaskID] = {}

        def show(what: str, done: int, total: int | None) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(what, total=total)
            bar.update(tasks[what], completed=done, total=total)

        yield show


def _lines() -> Progress:
    shown: dict[str, int] = {}

    def show(what: str, done: int, total: int | None) -> None:
        tenth = 10 * done // total if total else 0
        if tenth == shown.get(what, -1):
            return
        shown[what] = tenth
        size = f": {done / 1e6:.1f} of {total / 1e6:.1f} MB" if total else " ..."
        sys.stderr.write(f"{what}{size}\n")
        sys.stderr.flush()

    return show
