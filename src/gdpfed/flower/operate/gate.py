"""A door to the SuperLink through which nodes come, and nobody else.

Place: operations, between the network and a SuperLink that listens on loopback. Flower 1.41 serves three things on one
port: the Fleet API for nodes, the Control API (register keys, start runs) and the Runtime API (for its own processes).
The latter two ask for no key. Whoever reaches them can send code to every node. The gate ends TLS, passes on what
is asked of the Fleet API, where nodes sign every request, and answers 404 to the rest. ``GET /health`` it answers by
itself: 200 if the SuperLink does, 502 if it does not, and nothing more.

The access log has a line of JSON for each request: when, from where, which path, status, bytes each way and seconds.
When a node sends how much is what the operator and the network see anyway; the file is the operator's only.

Guarantees (tests of the same name):
  only_the_fleet_api_passes   whatever else is asked never reaches the SuperLink, however the path is written.
  health_is_the_superlinks    200 while it answers, 502 while it does not.
  requests_are_logged         in a private file that does not fill the disk.
"""

import contextlib
import datetime
import json
import re
import time
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from pathlib import Path
from typing import Any, TextIO

from gdpfed.errors import InputError, MissingExtraError
from gdpfed.files import private_opener
from gdpfed.flower.operate.connection import address
from gdpfed.flower.shared.leaning import FLEET_PREFIX

__all__ = ["AccessLog", "gate_app", "is_for_nodes", "serve_gate"]

# One plain name below the Fleet API, nothing encoded.
_FLEET = re.compile(re.escape(FLEET_PREFIX).encode() + rb"/-*[A-Za-z][A-Za-z-]*")
_HEALTH = b"/health"
# Those of one connection (RFC 9110, 7.6.1), and those that the next hop writes itself.
_OWN_HEADERS = frozenset(
    ("connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade", "host")
)
_SECONDS = 120.0
_HEALTH_SECONDS = 2.0
_OK, _NOT_FOUND, _BAD_GATEWAY = 200, 404, 502
_LARGEST_LOG = 16 << 20

_Event = MutableMapping[str, Any]
_Receive = Callable[[], Awaitable[_Event]]
_Send = Callable[[_Event], Awaitable[None]]
App = Callable[[_Event, _Receive, _Send], Awaitable[None]]


def is_for_nodes(method: str, raw_path: bytes) -> bool:
    """Whether a request is for the Fleet API."""
    return method == "POST" and _FLEET.fullmatch(raw_path) is not None


class AccessLog:
    """Lines of JSON in a private file, made with the first; when it is full, it becomes the old one."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: TextIO | None = None

    def __call__(self, **facts: object) -> None:
        """One request."""
        now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        try:
            self._file = self._file or self._opened()
            if self._file.tell() > _LARGEST_LOG:
                # Not there: the attempt before this one came only so far.
                with contextlib.suppress(FileNotFoundError):
                    self._path.replace(self._path.with_name(self._path.name + ".1"))
                # The full one is let go of last: a failure leaves an open file, and the next request tries again.
                full = self._file
                self._file = self._opened()
                full.close()
            self._file.write(json.dumps({"time": now, **facts}) + "\n")
            self._file.flush()
        except OSError:
            # A full disk must keep no node out.
            return

    def _opened(self) -> TextIO:
        return open(self._path, "a", encoding="utf-8", opener=private_opener)

    def close(self) -> None:
        """Lets go of the file."""
        if self._file is not None:
            self._file.close()


def gate_app(superlink: str, authority: Path, *, log: Callable[..., None] = lambda **_: None) -> App:
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
    known = {"at": -_HEALTH_SECONDS, "status": _BAD_GATEWAY}

    async def health() -> int:
        """Asked of the SuperLink at most once in two seconds, however often the gate is."""
        if time.monotonic() - known["at"] >= _HEALTH_SECONDS:
            known["at"] = time.monotonic()
            try:
                await client.get("/", timeout=_HEALTH_SECONDS)
                known["status"] = _OK
            except httpx.HTTPError:
                known["status"] = _BAD_GATEWAY
        return int(known["status"])

    async def passed(scope: _Event, receive: _Receive, send: _Send) -> None:
        raw_path = scope.get("raw_path") or b""
        if scope["method"] == "GET" and raw_path == _HEALTH and not scope.get("query_string"):
            status = await health()
            await _answer(send, status, b"ok" if status == _OK else b"the SuperLink does not answer")
            return
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

    async def app(scope: _Event, receive: _Receive, send: _Send) -> None:
        if scope["type"] != "http":
            return
        begun, status, taken, given = time.monotonic(), 0, 0, 0

        async def counted() -> _Event:
            nonlocal taken
            event = await receive()
            taken += len(event.get("body", b""))
            return event

        async def noted(event: _Event) -> None:
            nonlocal status, given
            status = event.get("status", status)
            given += len(event.get("body", b""))
            await send(event)

        try:
            await passed(scope, counted, noted)
        finally:
            path = (scope.get("raw_path") or b"")[:200].decode("ascii", "replace")
            peer = (scope.get("client") or ("",))[0]
            seconds = round(time.monotonic() - begun, 3)
            facts = {"peer": peer, "method": scope["method"], "path": path, "status": status}
            log(**facts, bytes_in=taken, bytes_out=given, seconds=seconds)

    return app


def _passed_on(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    return [(name, value) for name, value in headers if name.decode("latin-1").lower() not in _OWN_HEADERS]


async def _answer(send: _Send, status: int, text: bytes) -> None:
    headers = [(b"content-type", b"text/plain"), (b"content-length", str(len(text)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": text})


def serve_gate(certificates: Path, *, listen: str, superlink: str, access_log: Path | None = None) -> None:
    """Serves until it is told to end; ``listen`` and ``superlink`` are HOST:PORT."""
    try:
        import uvicorn
    except ModuleNotFoundError:
        raise MissingExtraError(package="uvicorn", extra="flower", purpose="the gate") from None
    for name in ("ca.crt", "server.crt", "server.key"):
        if not (certificates / name).is_file():
            raise InputError(f"expected {name} in {str(certificates)!r}: make a server's home with gdpfed flower init")
    host, port = address(listen)
    address(superlink)
    log = {} if access_log is None else {"log": AccessLog(access_log)}
    uvicorn.run(
        gate_app(superlink, certificates / "ca.crt", **log),
        host=host,
        port=port,
        ssl_certfile=certificates / "server.crt",
        ssl_keyfile=certificates / "server.key",
        server_header=False,
        lifespan="off",
        log_level="warning",
    )
