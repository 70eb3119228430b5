"""`gdpfed data`: which data sets are here, fetch one, check them."""

import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, TaskID, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from rich.progress import Progress as ProgressBar
from typer import Argument, Option

from gdpfed.cli import options
from gdpfed.cli.show import console, print_json, print_table, say, table, tell
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
    Option("--data-dir", help="Folder with data files, or with a folder for each set. Default: $GDPFED_DATA."),
]
Name = Annotated[str, Argument(help="Data set, or network of public data: " + ", ".join(CATALOGUE) + ".")]


def _copies(source: Source, data_dir: Path | None) -> list[Found]:
    """Every complete set of files nearby, the one in use first."""
    return [copy for place in places(source, data_dir=data_dir) if (copy := find(source, place)) is not None]


def _where(kind: str, folder: object) -> str:
    return "in the package" if kind == "package" else f"{kind}: {folder}"


@data_app.command("list")
def list_sets(data_dir: DataDir = None, as_json: options.Json = False) -> None:
    """Every data set, and whether it is here. Reads no file: 'check' does."""
    sets: list[dict[str, Any]] = []
    for source in CATALOGUE.values():
        copy = next(iter(_copies(source, data_dir)), None)
        known = {"name": source.name, "title": source.title, "num_train": source.num_train, "num_test": source.num_test}
        known |= {"public_data": source.public_data} if source.public_data else {}
        where = {"place": copy.kind, "folder": str(copy.folder)} if copy else {"place": None, "folder": None}
        sets.append({**known, "licence": source.licence, **where, "addresses": source.addresses})
    if as_json:
        print_json(sets)
        return
    columns: dict[str, Callable[[dict[str, Any]], str]] = {
        "name": lambda each: each["name"],
        "train": lambda each: f"{each['num_train']:,}" if each["num_train"] else "",
        "test": lambda each: f"{each['num_test']:,}" if each["num_test"] else "",
        "what it is": lambda each: each["title"],
        "licence": lambda each: each["licence"],
        "here": lambda each: (
            _where(each["place"], each["folder"]) if each["place"] else f"no: gdpfed data get {each['name']}"
        ),
    }
    print_table("Data sets", columns, sets, folded=["what it is", "licence", "here"])


@data_app.command("get")
def get_set(
    name: Name,
    data_dir: Annotated[
        Path | None, Option(help="Put the files into this folder. Default: the cache, if they are not here.")
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Make sure that a data set is here and whole: look nearby, else download and check it."""
    source = source_of(name)
    with _progress() as progress:
        raw = get_source(source, data_dir=data_dir, progress=progress)
    content = {
        "name": source.name,
        "place": raw.found.kind,
        "folder": str(raw.found.folder),
        "files": [str(path) for path in raw.found.paths],
        "differences": raw.differences,
    }
    state = "not the official files" if raw.differences else "content checked"
    tell(as_json, content, f"{source.name}: {state}; {_where(raw.found.kind, raw.found.folder)}")


@data_app.command("check")
def check_sets(
    name: Annotated[str | None, Argument(help="Data set. Default: all that are here.")] = None,
    data_dir: DataDir = None,
    as_json: options.Json = False,
) -> None:
    """Read every file of every copy that is here and compare its SHA-256; exit code 2 if one is damaged."""
    sources = tuple(CATALOGUE.values()) if name is None else (source_of(name),)
    rows = []
    for source in sources:
        for copy in _copies(source, data_dir):
            try:
                detail = "; ".join(read(source, copy).differences)
                state = "not official" if detail else "ok"
            except InputError as error:
                state, detail = "damaged", str(error)
            where = {"name": source.name, "place": copy.kind, "folder": str(copy.folder)}
            rows.append({**where, "state": state, "detail": detail})
    if not rows:
        raise InputError(f"expected files of {name!r} to check, found none: run 'gdpfed data get {name}'")
    if as_json:
        print_json(rows)
    else:
        columns = ["name", "state", "place", "folder"]
        cells = [[row[column] for column in columns] for row in rows]
        console().print(table("Files here, by SHA-256 of their content", columns, cells, folded=columns[1:]))
        say(*(f"{row['name']}: {row['detail']}" for row in rows if row["state"] == "not official"))
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
    last: dict[str, int] = {}

    def show(what: str, done: int, total: int | None) -> None:
        tenth = 10 * done // total if total else 0
        if tenth == last.get(what, -1):
            return
        last[what] = tenth
        size = f": {done / 1e6:.1f} of {total / 1e6:.1f} MB" if total else " ..."
        sys.stderr.write(f"{what}{size}\n")
        sys.stderr.flush()

    return show
