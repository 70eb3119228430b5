"""A real server on this machine for all of these tests, in a thread."""

import socket
import threading
import time
from collections.abc import Iterator
from multiprocessing import forkserver

import httpx
import pytest

from gdpfed.serve.app import Served
from gdpfed.serve.server import bound, prepared
from tests.serve.served import make_everything

TOKEN = "the-token"  # noqa: S105 - of a server that lives for a test


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Served:
    return make_everything(tmp_path_factory.mktemp("served"))


@pytest.fixture(scope="session")
def listening() -> Iterator[socket.socket]:
    with bound(0) as made:
        yield made


@pytest.fixture(scope="session")
def port(listening: socket.socket) -> int:
    return int(listening.getsockname()[1])


@pytest.fixture(scope="session")
def address(
    served: Served, listening: socket.socket, port: int, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """Where the server is, while it runs."""
    server = prepared(served, token=TOKEN, port=port)
    # Its processes remember for each other what they calibrated, on a disk of their own; each imports pytest, the main
    # program, which is there already.
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GDPFED_CACHE", str(tmp_path_factory.mktemp("cache")))
        forkserver.set_forkserver_preload(["pytest", "gdpfed.serve.work"])
        forkserver.ensure_running()
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    while thread.is_alive() and not server.started:
        time.sleep(0.01)
    yield f"http://127.0.0.1:{port}"
    server.should_exit = True
    thread.join()


@pytest.fixture
def stranger(address: str) -> Iterator[httpx.Client]:
    """Who reaches the port, and has no token."""
    with httpx.Client(base_url=address, timeout=120) as client:
        yield client


@pytest.fixture
def client(stranger: httpx.Client) -> httpx.Client:
    """Who opened the printed address."""
    assert stranger.get("/", params={"token": TOKEN}).status_code == 303
    return stranger
