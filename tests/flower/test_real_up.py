"""`gdpfed flower up` as a newcomer runs it: real processes, TLS, keys, three groups, three rounds, and nothing left."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import PIPE
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gdpfed.cli import main
from gdpfed.flower.operate.processes import free_ports
from gdpfed.flower.operate.status import ServerStatus, status_of
from gdpfed.ledger.verify import verify_ledger
from gdpfed.runs.folder import open_run
from gdpfed.runs.stamp import DEPLOYED
from tests.flower.real import listening_addresses, marked_processes, settle

pytestmark = [pytest.mark.processes, pytest.mark.xdist_group("up")]

pytest.importorskip("flwr")

FLOWER = [sys.executable, "-c", "from gdpfed.cli import main; main()", "flower"]


def call(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    assert ended.value.code == 0
    return capsys.readouterr().out


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("up") / "federation"


@dataclass(kw_only=True)
class Watched:
    """What was seen from outside while it ran."""

    server: list[ServerStatus] = field(default_factory=list)
    scraped: str = ""
    told: dict[str, Any] = field(default_factory=dict)


@pytest.fixture(scope="module")
def watched() -> Watched:
    return Watched()


def watch(folder: Path, watched: Watched) -> None:
    """Looks at the server's home; and once, in the middle of the run, by the real commands."""
    home = folder / "server"
    if not (home / "progress.jsonl").is_file():
        return
    found = status_of(home)
    assert isinstance(found, ServerStatus)
    watched.server.append(found)
    if watched.scraped or not found.rounds_done:
        return
    port = free_ports(1)[0]
    with subprocess.Popen([*FLOWER, "metrics", str(home), "--listen", f"127.0.0.1:{port}"], stdout=PIPE) as page:
        try:
            assert page.stdout is not None
            assert b"metrics of" in page.stdout.readline()
            assert listening_addresses({page.pid}) == {f"127.0.0.1:{port}"}
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
                watched.scraped = answer.read().decode()
        finally:
            page.terminate()
    done = subprocess.run([*FLOWER, "status", str(folder / "nodes" / "node1"), "--json"], capture_output=True)
    watched.told = json.loads(done.stdout)


def test_up_takes_everything_down(folder: Path, watched: Watched) -> None:
    command = [*FLOWER, "up", "--nodes", "6", "--rounds", "3", "--dir", str(folder)]
    with subprocess.Popen(command, stdout=PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            while process.poll() is None:
                watch(folder, watched)
                time.sleep(1.0)
        finally:
            process.terminate()
        assert process.stdout is not None
        said = process.stdout.read()
    assert process.returncode == 0, said
    assert settle(folder) == {}
    assert "round 3 done" in said
    assert "gdpfed report" in said
    assert len(list((folder / "nodes").iterdir())) == 6
    assert {path.name for path in (folder / "logs").iterdir()} == {
        "superlink.log", *(f"node{number}.log" for number in range(1, 7)),
    }  # fmt: skip
    # Nobody refused: every node's own ledger has what the server asked of it.
    assert not list((folder / "nodes").glob("*/node.log"))


def test_status_of_a_run_that_goes_on(watched: Watched) -> None:
    assert watched.server, "there is no run: test_up_takes_everything_down failed"
    running = [found for found in watched.server if found.state == "running"]
    assert {found.round_number for found in running} >= {1, 2, 3}
    assert {found.stage for found in running if found.stage} >= {"keys", "input"}
    waiting = [found for found in running if found.waiting and found.stage]
    assert waiting
    assert all(found.until is not None and set(found.waiting) <= set(found.enrolled) for found in waiting)
    assert max(len(found.online or ()) for found in running) == 6
    assert any(found.seconds_left for found in running)
    spent = [group.spent for found in running for group in found.groups if found.rounds_done]
    assert all(value is not None and value > 0 for value in spent)


def test_metrics_of_a_run_that_goes_on(watched: Watched) -> None:
    assert watched.server, "there is no run: test_up_takes_everything_down failed"
    families = {family.name: family for family in text_string_to_metric_families(watched.scraped)}
    states = {one.labels["state"]: one.value for one in families["gdpfed_server_state"].samples}
    assert states["running"] == 1
    assert families["gdpfed_server_nodes_online"].samples[0].value == 6
    assert len(families["gdpfed_server_epsilon_spent"].samples) == 3
    assert not re.search(r"node[1-6]", watched.scraped)
    assert (watched.told["kind"], watched.told["name"]) == ("node", "node1")
    assert 0 < watched.told["spent"] <= watched.told["epsilon"]


def test_up_reads_like_a_simulation(folder: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert (folder / "server" / "run").is_dir(), "there is no run: test_up_takes_everything_down failed"
    home = folder / "server"
    shown = json.loads(call(capsys, "show", home / "run", "--json"))
    assert shown["runs"][0]["rounds"] == [1, 2, 3]
    assert shown["stamp"] == DEPLOYED
    asked = (home / "run" / "run.toml").read_text()
    assert "gdpfed resume" not in asked
    assert "flwr run" in asked
    assert open_run(home / "run").task.settings.participation == pytest.approx(0.5)
    status = json.loads(call(capsys, "ledger", "status", home / "ledger", "--json"))
    assert len(status["groups"]) == 3
    assert all(part["charged"] == part["published"] == 3 for part in status["groups"]), status["groups"]
    verify_ledger(home / "ledger")
    call(capsys, "report", home / "run", "--out", tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert re.search(r"group 3", page)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_up_that_is_stopped_leaves_nothing(tmp_path: Path, number: signal.Signals) -> None:
    """Ctrl-C, and a kill that no program can catch."""
    command = [*FLOWER, "up", "--nodes", "3", "--rounds", "3", "--dir", str(tmp_path / "up")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        deadline = time.monotonic() + 300
        while not (tmp_path / "up" / "server" / "progress.jsonl").exists() and time.monotonic() < deadline:
            time.sleep(0.2)
        running = marked_processes(tmp_path / "up")
        assert len(running) > 8
        assert listening_addresses(set(running))
        os.kill(process.pid, number)
        process.communicate(timeout=60)
        assert process.returncode == (130 if number == signal.SIGINT else -signal.SIGKILL)
    assert settle(tmp_path / "up", within=20) == {}
