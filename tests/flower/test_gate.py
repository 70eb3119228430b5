"""The gate, before a server that notes what reaches it; test_real_processes.py has it before a real SuperLink."""

import http.server
import os
import socket
import ssl
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from gdpfed.errors import InputError
from gdpfed.flower.operate.certificates import make_certificates
from gdpfed.flower.operate.gate import is_for_nodes, serve_gate
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
    serve += f"listen='127.0.0.1:{outer}', superlink='127.0.0.1:{inner}')"
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
        finally:
            gate.terminate()
            server.shutdown()
            thread.join()
            server.server_close()


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
