"""A real server on this machine for the tests of a module, in a thread; its processes are forked once."""

import socket
import threading
import time
from collections.abc import Iterator

import httpx
import pytest
import uvicorn

from gdpfed.serve.app import Served, make_app
from gdpfed.serve.guard import Guard
from gdpfed.serve.server import bound
from tests.serve.served import make_everything

TOKEN = "the-token"  # noqa: S105 - of a server that lives for a test


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Served:
    return make_everything(tmp_path_factory.mktemp("served"))


@pytest.fixture(scope="module")
def listening() -> Iterator[socket.socket]:
    with bound(0) as made:
        yield made


@pytest.fixture(scope="module")
def port(listening: socket.socket) -> int:
    return int(listening.getsockname()[1])


@pytest.fixture(scope="module")
def address(served: Served, listening: socket.socket, port: int) -> Iterator[str]:
    """Where the server is, while it runs."""
    app = Guard(make_app(served), token=TOKEN, port=port)
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    while not server.started:
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
