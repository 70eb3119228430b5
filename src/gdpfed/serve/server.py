"""Starts the pages on this machine and ends with an interrupt.

Place: the last step; the command line calls `serve`. The socket is bound before anything is printed, to 127.0.0.1 only,
so the printed address is right and nobody else's.
"""

import asyncio
import contextlib
import secrets
import socket
import webbrowser
from collections.abc import Callable

import uvicorn

from gdpfed.errors import InputError
from gdpfed.serve.app import Served, make_app
from gdpfed.serve.guard import Guard

__all__ = ["bound", "prepared", "serve"]

_HOST = "127.0.0.1"


def bound(port: int) -> socket.socket:
    """A socket on this machine; port 0 is any that is free."""
    if not 0 <= port <= 65535:
        raise InputError(f"expected a port from 0 to 65535, got {port}")
    made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind((_HOST, port))
    except OSError as error:
        made.close()
        raise InputError(f"cannot listen at {_HOST}:{port}: {error.strerror}; choose another --port, or 0") from None
    made.listen(128)
    return made


def prepared(served: Served, *, token: str, port: int) -> uvicorn.Server:
    """The server, guarded: it says nothing of itself, and knows no other protocol."""
    app = Guard(make_app(served), token=token, port=port)
    return uvicorn.Server(
        uvicorn.Config(
            app,
            log_level="warning",
            access_log=False,
            server_header=False,
            date_header=False,
            loop="asyncio",
            ws="none",
            timeout_graceful_shutdown=1,
        )
    )


def serve(served: Served, *, port: int, told: Callable[[str], None], opened: bool) -> None:
    """Runs until it is interrupted. ``told`` gets the address, with the token in it."""
    with bound(port) as listening:
        port = listening.getsockname()[1]
        token = secrets.token_urlsafe(24)
        server = prepared(served, token=token, port=port)
        address = f"http://{_HOST}:{port}/?token={token}"
        told(address)
        if opened:
            webbrowser.open(address)
        # The server ends in order, and then passes the interrupt on.
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(server.serve(sockets=[listening]))
