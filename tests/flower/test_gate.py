"""The gate, before a server that notes what reaches it; test_real_processes.py has it before a real SuperLink."""

import asyncio
import http.server
import json
import os
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from gdpfed.errors import InputError
from gdpfed.flower.operate.certificates import make_certificates
from gdpfed.flower.operate.gate import AccessLog, gate_app, is_for_nodes, serve_gate
from gdpfed.flower.operate.processes import free_ports
from tests.flower.real import ask

pytestmark = pytest.mark.processes

pytest.importorskip("flwr")

BAD = [
    "/v1/control/start-run", "/v1/runtime/acquire-task", "/v1/fleet/../control/start-run", "/v1/fleet/%2e%2e/control/x",
    "//v1/control/start-run", "/v1/fleet//control", "/v1/fleet/", "/v1/fleet/x?a=b", "/V1/FLEET/x", "/docs",
    "/v1/fleet/x/y", "/v1/fleet/x%2f..%2f..%2fcontrol", "/v1/fleet/x;y", "/v1/fleet/..\\control",
]  # fmt: skip


class Notes(http.server.BaseHTTPRequestHandler):
    """Answers with what it got."""

    protocol_version = "HTTP/1.1"
    seen: list[str]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"])) if "content-length" in self.headers else b""
        self.seen.append(self.path)
        answer = body[::-1] + self.headers.get("x-signature", "").encode()
        self.send_response(201)
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    do_GET = do_POST  # noqa: N815 - the library's name

    def log_message(self, *_: object) -> None:
        pass


def test_only_the_fleet_api_passes(tmp_path: Path) -> None:
    authority = make_certificates(tmp_path, hosts=["127.0.0.1"])
    inner, outer = free_ports(2)
    Notes.seen = []
    server = http.server.ThreadingHTTPServer(("127.0.0.1", inner), Notes)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "server.crt", tmp_path / "server.key")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    serve = "from pathlib import Path; from gdpfed.flower.operate.gate import serve_gate; "
    serve += f"serve_gate(Path({str(tmp_path)!r}), "
    serve += f"listen='127.0.0.1:{outer}', superlink='127.0.0.1:{inner}', access_log=Path({str(tmp_path / 'log')!r}))"
    with subprocess.Popen([sys.executable, "-c", serve], env=dict(os.environ)) as gate:
        try:
            deadline = time.monotonic() + 30
            while time.monotonic() < deadline:
                with socket.socket() as probe:
                    if probe.connect_ex(("127.0.0.1", outer)) == 0:
                        break
                time.sleep(0.1)
            body = os.urandom(1 << 20)
            answer = ask(outer, authority, "POST /v1/fleet/push-object", body)
            assert answer.startswith(b"HTTP/1.1 201")
            assert answer.endswith(body[::-1] + b"abc")
            for path in BAD:
                assert b" 404 " in ask(outer, authority, f"POST {path}").split(b"\r\n")[0], path
            assert b" 404 " in ask(outer, authority, "GET /v1/fleet/push-object").split(b"\r\n")[0]
            assert Notes.seen == ["/v1/fleet/push-object"]
            assert ask(outer, authority, "GET /health").endswith(b"ok")
            assert b" 404 " in ask(outer, authority, "GET /health?x=1").split(b"\r\n")[0]
            assert (tmp_path / "log").stat().st_mode & 0o777 == 0o600
            # A line is written when its answer has left.
            deadline = time.monotonic() + 30
            while len(lines := (tmp_path / "log").read_text().splitlines()) < len(BAD) + 4:
                assert time.monotonic() < deadline, lines
                time.sleep(0.05)
            rows = [json.loads(line) for line in lines]
            assert (rows[0]["path"], rows[0]["status"], rows[0]["bytes_in"]) == ("/v1/fleet/push-object", 201, 1 << 20)
        finally:
            gate.terminate()
            server.shutdown()
            thread.join()
            server.server_close()


def test_health_is_the_superlinks(tmp_path: Path) -> None:
    """No SuperLink: 502, and no more than that is said."""
    authority = make_certificates(tmp_path, hosts=["127.0.0.1"])
    app = gate_app(f"127.0.0.1:{free_ports(1)[0]}", authority)
    sent: list[dict[str, Any]] = []

    async def send(event: Any) -> None:
        sent.append(event)

    scope = {"type": "http", "method": "GET", "raw_path": b"/health", "query_string": b"", "headers": []}
    asyncio.run(app(scope, None, send))  # type: ignore[arg-type]
    assert (sent[0]["status"], sent[1]["body"]) == (502, b"the SuperLink does not answer")


def test_an_access_log_does_not_fill_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gdpfed.flower.operate.gate._LARGEST_LOG", 1000)
    log = AccessLog(tmp_path / "log")
    for number in range(100):
        log(path="/x", number=number)
    log.close()
    assert {path.name for path in tmp_path.iterdir()} == {"log", "log.1"}
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 2500
    assert json.loads((tmp_path / "log").read_text().splitlines()[-1])["number"] == 99


def test_a_log_that_cannot_be_moved_keeps_no_node_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gdpfed.flower.operate.gate._LARGEST_LOG", 100)
    log = AccessLog(tmp_path / "log")
    (tmp_path / "log.1" / "in the way").mkdir(parents=True)
    for number in range(10):
        log(number=number)
    shutil.rmtree(tmp_path / "log.1")
    # The old one was moved, and no new one could be opened.
    with monkeypatch.context() as patch:
        patch.setattr("builtins.open", mock.Mock(side_effect=OSError("no file is left")))
        log(number=10)
        log(number=11)
    log(number=12)
    log.close()
    assert [json.loads(line)["number"] for line in (tmp_path / "log").read_text().splitlines()] == [12]


def test_paths_are_taken_literally() -> None:
    assert is_for_nodes("POST", b"/v1/fleet/pull-messages")
    assert not any(is_for_nodes("POST", path.encode()) for path in BAD if "?" not in path)
    assert not is_for_nodes("GET", b"/v1/fleet/pull-messages")


def test_what_a_gate_needs_is_said(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="gdpfed flower init"):
        serve_gate(tmp_path, listen="127.0.0.1:1", superlink="127.0.0.1:2")
    make_certificates(tmp_path, hosts=["127.0.0.1"])
    with pytest.raises(InputError, match="HOST:PORT"):
        serve_gate(tmp_path, listen="127.0.0.1", superlink="127.0.0.1:2")
