"""Small data sets with the layout of the real ones, and a real server for them on this machine."""

import dataclasses
import gzip
import hashlib
import http.server
import io
import socket
import tarfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from gdpfed.tasks.catalogue import CATALOGUE, Archive, RawFile, Source


def raw_file(name: str, content: bytes) -> RawFile:
    return RawFile(name=name, num_bytes=len(content), sha256=hashlib.sha256(content).hexdigest(), md5="")


def idx(array: np.ndarray) -> bytes:
    return b"\0\0\x08" + bytes([array.ndim]) + np.array(array.shape, dtype=">u4").tobytes() + array.tobytes()


def tiny_fmnist(*, seed: int = 5, **changes: object) -> tuple[Source, dict[str, bytes]]:
    """A source like Fashion-MNIST's with 6 + 3 images, and its files as they would be served."""
    draw = np.random.default_rng(seed)
    contents = {
        "train-images-idx3-ubyte.gz": idx(draw.integers(256, size=(6, 28, 28), dtype=np.uint8)),
        "train-labels-idx1-ubyte.gz": idx(np.array([9, 0, 1, 2, 3, 4], dtype=np.uint8)),
        "t10k-images-idx3-ubyte.gz": idx(draw.integers(256, size=(3, 28, 28), dtype=np.uint8)),
        "t10k-labels-idx1-ubyte.gz": idx(np.array([7, 8, 9], dtype=np.uint8)),
    }
    files = tuple(raw_file(name, content) for name, content in contents.items())
    source = dataclasses.replace(CATALOGUE["fmnist"], files=files, system_folder=None, **changes)
    return source, {name: gzip.compress(content) for name, content in contents.items()}


def cifar_records(labels: list[int], *, seed: int) -> bytes:
    pixels = np.random.default_rng(seed).integers(256, size=(len(labels), 3072), dtype=np.uint8)
    return np.concatenate([np.array(labels, dtype=np.uint8)[:, None], pixels], axis=1).tobytes()


def tar_gz(members: dict[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return packed.getvalue()


def tiny_cifar(*, last_label: int = 3, **changes: object) -> tuple[Source, dict[str, bytes], bytes]:
    """A source like CIFAR-10's with two images a batch, its files, and the archive as it would be served."""
    original = CATALOGUE["cifar10"]
    contents = {file.name: cifar_records([place, last_label], seed=place) for place, file in enumerate(original.files)}
    archive = tar_gz({f"cifar-10-batches-bin/{name}": content for name, content in contents.items()})
    source = dataclasses.replace(
        original,
        files=tuple(raw_file(name, content) for name, content in contents.items()),
        archive=Archive(
            name="cifar-10-binary.tar.gz", sha256=hashlib.sha256(archive).hexdigest(), folder="cifar-10-batches-bin"
        ),
        **changes,
    )
    return source, contents, archive


class Server(http.server.ThreadingHTTPServer):
    """Serves ``answers`` by path, and remembers what was asked for."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers: dict[str, bytes] = {}
        self.missing_bytes = 0
        self.asked: list[str] = []

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/"

    def serve(self, files: dict[str, bytes]) -> None:
        self.answers |= {f"/{name}": content for name, content in files.items()}


class Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        content = self.server.answers.get(self.path)
        if content is None:
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(content) + self.server.missing_bytes))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as made:
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield made
        made.shutdown()
        thread.join()


@pytest.fixture
def nowhere() -> str:
    """An address where nobody listens."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{closed.getsockname()[1]}/"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, _no_disk_cache: None) -> Path:
    """A cache of the test's own; no data dir, no proxy, no npm."""
    monkeypatch.setenv("GDPFED_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("GDPFED_DATA", raising=False)
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    return tmp_path / "cache" / "data"


@pytest.fixture
def put() -> Callable[[Path, dict[str, bytes]], Path]:
    def write(folder: Path, files: dict[str, bytes]) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            (folder / name).write_bytes(content)
        return folder

    return write
