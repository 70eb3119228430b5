"""Flower's real processes on loopback, with a Flower app of a few lines."""

import json
import socket
import time
from dataclasses import dataclass

import pytest

from gdpfed.errors import GdpfedError
from gdpfed.flower.operate.certificates import make_node_key
from gdpfed.flower.operate.connection import Reached, reach
from gdpfed.flower.operate.doctor import _reachable
from gdpfed.flower.operate.processes import LocalFlower
from tests.flower.real import ask, listening_addresses, marked_processes, settle, write_plain_app

pytestmark = [pytest.mark.processes, pytest.mark.xdist_group("real")]

pytest.importorskip("flwr")


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What a deployment with one registered node and one unknown key showed, before and after it was interrupted."""

    told: dict[str, object]
    processes: dict[int, str]
    addresses: set[str]
    port: int
    logs: dict[str, str]
    left: dict[int, str]
    is_port_open: bool
    reached: list[Reached]
    access: list[dict[str, object]]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    """One deployment for all tests here: it takes its time."""
    work = tmp_path_factory.mktemp("real")
    app = write_plain_app(work / "app")
    folder = work / "federation"
    keys = {name: make_node_key(folder / name) for name in ("known", "unknown")}
    with pytest.raises(KeyboardInterrupt), LocalFlower(folder) as deployment:  # noqa: PT012 - what is left counts
        deployment.start_superlink()
        deployment.start_gate()
        deployment.register([keys["known"]])
        for name, public in keys.items():
            deployment.start_node(name, key=public.with_suffix(".key"), config={"name": name})
        deployment.await_connected(["known"])
        run = deployment.submit(app, {"result": work / "result.json"})
        while not deployment.status(run).startswith("finished"):
            time.sleep(0.5)
        told = json.loads((work / "result.json").read_text())
        with pytest.raises(GdpfedError, match="unknown"):
            deployment.await_connected(["unknown"])
        logs = {name: node.log.read_text() for name, node in deployment.nodes.items()}
        through_the_gate = ask(deployment.gate_port, deployment.certificates / "ca.crt", "POST /v1/control/list-runs")
        assert b" 404 " in through_the_gate.split(b"\r\n")[0]
        authority = deployment.certificates / "ca.crt"
        reached = [reach(f"127.0.0.1:{port}", authority) for port in (deployment.gate_port, deployment.port)]
        access = [json.loads(line) for line in (deployment.logs / "access.log").read_text().splitlines()]
        processes = marked_processes(folder)
        addresses = listening_addresses(set(processes))
        raise KeyboardInterrupt
    left = settle(folder)
    with socket.socket() as probe:
        is_port_open = 0 in [probe.connect_ex(("127.0.0.1", port)) for port in (deployment.port, deployment.gate_port)]
    return Seen(
        told=told,
        processes=processes,
        addresses=addresses,
        port=deployment.port,
        logs=logs,
        left=left,
        is_port_open=is_port_open,
        reached=reached,
        access=access,
    )


def test_nothing_is_left_behind(seen: Seen) -> None:
    assert len(seen.processes) >= 6
    assert seen.left == {}
    assert not seen.is_port_open


def test_only_loopback_is_used(seen: Seen) -> None:
    assert f"127.0.0.1:{seen.port}" in seen.addresses
    assert all(address.startswith("127.0.0.1:") for address in seen.addresses), seen.addresses


def test_an_unknown_key_is_refused(seen: Seen) -> None:
    assert seen.told == {"nodes": 1, "told": ["hello from known"]}
    assert "SuperNode ID:" in seen.logs["known"]
    assert "SuperNode ID:" not in seen.logs["unknown"]


def test_an_exposed_superlink_is_found(seen: Seen) -> None:
    """Through the gate nobody reaches the Control API; past it everybody does."""
    gate, superlink = seen.reached
    assert (gate.problem, gate.health, gate.control) == ("", 200, 404)
    assert superlink.problem == ""
    assert superlink.control != 404
    assert [finding.level for finding in _reachable("x:1", gate, is_needed=True)] == ["fine"]
    assert "problem" in [finding.level for finding in _reachable("x:1", superlink, is_needed=True)]


def test_requests_are_logged(seen: Seen) -> None:
    assert {"time", "peer", "method", "path", "status", "bytes_in", "bytes_out", "seconds"} == set(seen.access[0])
    nodes = [row for row in seen.access if str(row["path"]).startswith("/v1/fleet/") and row["status"] == 200]
    assert nodes
    assert {row["peer"] for row in seen.access} == {"127.0.0.1"}
    assert ("/v1/control/list-runs", 404) in [(row["path"], row["status"]) for row in seen.access]
