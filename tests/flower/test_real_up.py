"""`gdpfed flower up` as a newcomer runs it: real processes, TLS, keys, three groups, three rounds, and nothing left."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gdpfed.cli import main
from gdpfed.ledger.verify import verify_ledger
from gdpfed.runs.folder import open_run
from gdpfed.runs.stamp import DEPLOYED
from tests.flower.real import listening_addresses, marked_processes, settle

pytestmark = pytest.mark.processes

pytest.importorskip("flwr")

UP = [sys.executable, "-c", "from gdpfed.cli import main; main()", "flower", "up"]


def call(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    assert ended.value.code == 0
    return capsys.readouterr().out


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("up") / "federation"


def test_up_takes_everything_down(folder: Path) -> None:
    done = subprocess.run(
        [*UP, "--nodes", "6", "--rounds", "3", "--dir", str(folder)], capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert settle(folder) == {}
    assert "round 3 done" in done.stdout
    assert "gdpfed report" in done.stdout
    assert len(list((folder / "nodes").iterdir())) == 6
    assert {path.name for path in (folder / "logs").iterdir()} == {
        "superlink.log", *(f"node{number}.log" for number in range(1, 7)),
    }  # fmt: skip
    # Nobody refused: every node's own ledger has what the server asked of it.
    assert not list((folder / "nodes").glob("*/node.log"))


def test_up_reads_like_a_simulation(folder: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    if not (folder / "server" / "run").is_dir():
        pytest.skip("there is no run: test_up_takes_everything_down failed")
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
    command = [*UP, "--nodes", "3", "--rounds", "3", "--dir", str(tmp_path / "up")]
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
