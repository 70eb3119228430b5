"""The attack list: other users of the machine, other sites in the same browser, and what they would try."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from gdpfed.serve.app import Served
from gdpfed.serve.guard import LARGEST_BODY, LONGEST_LINK, Guard
from tests.serve.conftest import TOKEN

PAGES = ("/", "/plan", "/runs", "/ledger", "/deployment", "/assets/plan.js", "/nothing", "/report?run=runs/plain")
ANSWERS = ("/api/plan?source=fmnist", "/api/runs", "/api/curves?run=runs/plain", "/api/ledger", "/api/deployment")
HOSTS = ("evil.example", "evil.example:{port}", "127.0.0.1", "127.0.0.1:1", "127.0.0.1.evil:{port}")


@pytest.fixture
def ours(address: str) -> dict[str, str]:
    return {"origin": address, "sec-fetch-site": "same-origin"}


@pytest.mark.parametrize("path", [*PAGES, *ANSWERS])
def test_nothing_without_the_token(stranger: httpx.Client, port: int, path: str) -> None:
    for cookie in ("", f"gdpfed-{port}=wrong", f"gdpfed-1={TOKEN}", f"gdpfed={TOKEN}", ";=;"):
        refused = stranger.get(path, headers={"cookie": cookie})
        assert refused.status_code == 403
        assert "token" in refused.text
        assert TOKEN not in refused.text
    for token in ("wrong", "", TOKEN + "x", TOKEN[:-1]):
        assert stranger.get(path, params={"token": token}).status_code == 403


def test_the_token_becomes_a_cookie_that_scripts_cannot_read(stranger: httpx.Client, address: str) -> None:
    answer = stranger.get("/plan", params={"source": "fmnist", "token": TOKEN, "rounds": "7"})
    assert answer.status_code == 303
    assert answer.headers["location"] == "/plan?source=fmnist&rounds=7"
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert stranger.get("/plan").status_code == 200
    elsewhere = stranger.get(f"{address}//evil.example/plan?token={TOKEN}")
    assert elsewhere.headers["location"] == "/evil.example/plan"


def test_another_cookie_of_this_host_locks_nobody_out(stranger: httpx.Client, port: int) -> None:
    ours = f"gdpfed-{port}={TOKEN}"
    for other in ('a={"x": 1}', "a b=c", "@=1", "odd", "=", "a=\xe4"):
        for cookie in (f"{other}; {ours}", f"{ours}; {other}"):
            assert stranger.get("/runs", headers={b"cookie": cookie.encode("latin-1")}).status_code == 200, cookie


@pytest.mark.parametrize("host", HOSTS)
def test_dns_rebinding_is_refused(client: httpx.Client, port: int, host: str) -> None:
    for path in ("/", "/api/runs", f"/?token={TOKEN}"):
        refused = client.get(path, headers={"host": host.format(port=port)})
        assert refused.status_code == 403
        assert "another host" in refused.text
    assert client.get("/plan", headers={"host": f"127.0.0.1:{port}"}).status_code == 200


@pytest.mark.parametrize(
    ("origin", "site"),
    [
        ("", ""),
        ("https://evil.example", "cross-site"),
        ("null", "cross-site"),
        ("http://127.0.0.1:1", "same-site"),
        ("{address}", "cross-site"),
        ("{address}.evil.example", ""),
    ],
)
def test_cross_site_requests_are_refused(
    client: httpx.Client, served: Served, address: str, origin: str, site: str
) -> None:
    headers = {"origin": origin.format(address=address)} if origin else {}
    headers |= {"sec-fetch-site": site} if site else {}
    content = {"query": {"source": "60@1"}, "name": "stolen.toml"}
    assert client.post("/api/save", json=content, headers=headers).status_code == 403
    if site:
        assert client.get("/api/runs", headers=headers).status_code == 403
    assert not (served.folder / "stolen.toml").exists()


def test_only_json_is_taken(client: httpx.Client, ours: dict[str, str]) -> None:
    """What a form of another site can send without asking is no JSON."""
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"):
        assert client.post("/api/save", content=b"{}", headers={**ours, "content-type": kind}).status_code == 415
    for method in ("PUT", "DELETE", "OPTIONS", "PATCH"):
        assert client.request(method, "/api/save", headers=ours).status_code == 405
    assert client.get("/api/save").status_code == 405
    for bad in (b"", b"[]", b"{", b"[" * 5000, b'{"query": 1, "name": 2}'):
        answer = client.post("/api/save", content=bad, headers={**ours, "content-type": "application/json"})
        assert "expected" in answer.json()["error"]


def test_oversized_requests_are_refused(client: httpx.Client, ours: dict[str, str]) -> None:
    headers = {**ours, "content-type": "application/json"}
    large = json.dumps({"text": "x" * LARGEST_BODY}).encode()
    assert client.post("/api/budgets", content=large, headers=headers).status_code == 413

    def unannounced() -> Iterator[bytes]:
        for _ in range(2 + LARGEST_BODY // 65536):
            yield b" " * 65536

    assert client.post("/api/budgets", content=unannounced(), headers=headers).status_code == 413
    assert client.get("/plan", params={"source": "1@" + "1" * LONGEST_LINK}).status_code == 414


def test_a_length_of_many_digits_is_refused() -> None:
    """Past the server in front, which may read it otherwise."""
    sent: list[Any] = []

    async def app(*_: object) -> None:
        raise AssertionError("passed")

    async def receive() -> Any:
        raise AssertionError("read")

    async def send(message: Any) -> None:
        sent.append(message)

    headers = {"host": "127.0.0.1:1", "origin": "http://127.0.0.1:1", "content-type": "application/json"}
    headers["content-length"] = "9" * 5000
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "method": "POST", "path": "/api/save", "query_string": b"", "headers": raw}
    asyncio.run(Guard(app, token=TOKEN, port=1)(scope, receive, send))
    assert sent[0]["status"] == 413


def test_no_page_runs_foreign_script(client: httpx.Client, address: str) -> None:
    for path in PAGES:
        answer = client.get(path)
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        if path.startswith("/report"):
            # It has its own script in it, and no access to anything of ours.
            assert policy.endswith("sandbox allow-scripts")
            assert "connect-src" not in policy
        else:
            assert "script-src 'self'" in policy
            assert "frame-ancestors 'none'" in policy
            assert "<script>" not in answer.text
            assert " onclick" not in answer.text
            assert "http" not in answer.text.replace(address, "").replace("http://www.w3.org/2000/svg", "")
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert answer.headers["cross-origin-resource-policy"] == "same-origin"
        assert "access-control-allow-origin" not in answer.headers
        assert answer.headers["cache-control"] == "no-store"
