"""A door to the SuperLink through which nodes come, and nobody else.

Place: operations, between the network and a SuperLink that listens on loopback. Flower 1.41 serves three things on one
port: the Fleet API for nodes, the Control API (register keys, start runs) and the Runtime API (for its own processes).
The latter two ask for no key. Whoever reaches them can send code to every node. The gate ends TLS, passes on what
is asked of the Fleet API, where nodes sign every request, and answers 404 to the rest.

Guarantees (tests of the same name):
  only_the_fleet_api_passes   whatever else is asked never reaches the SuperLink, however the path is written.
"""

import re
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from pathlib import Path
from typing import Any

from gdpfed.errors import InputError, MissingExtraError

__all__ = ["gate_app", "is_for_nodes", "serve_gate"]

# One plain name below the Fleet API, nothing encoded.
_FLEET = re.compile(rb"/v1/fleet/-*[A-Za-z][A-Za-z-]*")
# Those of one connection (RFC 9110, 7.6.1), and those that the next hop writes itself.
_OWN_HEADERS = frozenset(
    ("connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade", "host")
)
_SECONDS = 120.0
_NOT_FOUND = 404
_BAD_GATEWAY = 502

_Event = MutableMapping[str, Any]
_Receive = Callable[[], Awaitable[_Event]]
_Send = Callable[[_Event], Awaitable[None]]
App = Callable[[_Event, _Receive, _Send], Awaitable[None]]


def is_for_nodes(method: str, raw_path: bytes) -> bool:
    """Whether a request is for the Fleet API."""
    return method == "POST" and _FLEET.fullmatch(raw_path) is not None


def gate_app(superlink: str, authority: Path) -> App:
    """An ASGI app that passes requests of nodes on to ``superlink`` (HOST:PORT), whose certificate is checked."""
    import ssl

    import httpx

    try:
        trusted = ssl.create_default_context(cafile=str(authority))
    except OSError as error:
        raise InputError(f"expected a certificate in {str(authority)!r}: {error}; restore it from a copy") from None
    client = httpx.AsyncClient(
        base_url=f"https://{superlink}",
        verify=trusted,
        timeout=_SECONDS,
        trust_env=False,
    )

    async def app(scope: _Event, receive: _Receive, send: _Send) -> None:
        if scope["type"] != "http":
            return
        raw_path = scope.get("raw_path") or b""
        if not is_for_nodes(scope["method"], raw_path) or scope.get("query_string"):
            await _answer(send, _NOT_FOUND, b"not here")
            return

        async def body() -> Any:
            while True:
                event = await receive()
                if event["type"] != "http.request":
                    return
                yield event.get("body", b"")
                if not event.get("more_body"):
                    return

        headers = _passed_on(scope["headers"])
        request = client.build_request("POST", raw_path.decode("ascii"), headers=headers, content=body())
        try:
            response = await client.send(request, stream=True)
        except httpx.HTTPError:
            await _answer(send, _BAD_GATEWAY, b"the SuperLink does not answer")
            return
        try:
            start = {"type": "http.response.start", "status": response.status_code}
            await send({**start, "headers": _passed_on(response.headers.raw)})
            async for chunk in response.aiter_raw():
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            await response.aclose()

    return app


def _passed_on(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    return [(name, value) for name, value in headers if name.decode("latin-1").lower() not in _OWN_HEADERS]


async def _answer(send: _Send, status: int, text: bytes) -> None:
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-type", b"text/plain")]})
    await send({"type": "http.response.body", "body": text})


def serve_gate(certificates: Path, *, listen: str, superlink: str) -> None:
    """Serves until it is told to end; ``listen`` and ``superlink`` are HOST:PORT."""
    try:
        import uvicorn
    except ModuleNotFoundError:
        raise MissingExtraError(package="uvicorn", extra="flower", purpose="the gate") from None
    for name in ("ca.crt", "server.crt", "server.key"):
        if not (certificates / name).is_file():
            raise InputError(f"expected {name} in {str(certificates)!r}: make a server's home with gdpfed flower init")
    host, port = _address(listen)
    _address(superlink)
    uvicorn.run(
        gate_app(superlink, certificates / "ca.crt"),
        host=host,
        port=port,
        ssl_certfile=certificates / "server.crt",
        ssl_keyfile=certificates / "server.key",
        server_header=False,
        lifespan="off",
        log_level="warning",
    )


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise InputError(f"expected HOST:PORT, got {text!r}")
    return host.strip("[]"), int(port)
