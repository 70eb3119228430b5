"""The deployment's page."""

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gdpfed.errors import InputError
from gdpfed.flower.operate.progress import RunProgress, after
from gdpfed.flower.server.events import EVENTS
from gdpfed.serve import deployments
from gdpfed.serve.deployments import DeploymentWatch
from gdpfed.serve.pages import rendered
from tests.serve.served import make_home


def test_nobody_is_named(tmp_path: Path) -> None:
    home = make_home(tmp_path)
    watched = DeploymentWatch(home)
    status = watched.status()
    assert (status.rounds_done, status.num_rounds, status.enrolled) == (2, 10, 200)
    assert (status.stage, status.asked, status.answered, status.state) == ("input", 2, 1, "running")
    assert [group.released for group in status.groups] == [2, 2, 2]
    assert status.seconds_a_round == pytest.approx(25.0)
    page = rendered("deployment_answer.html", status=status)
    assert "secret" not in page + repr(status) + status.words
    with (home / EVENTS).open("a") as file:
        file.write(json.dumps({"event": "finished", "rounds": 10}) + "\n")
    assert watched.status().state == "finished"
    # Another run: the file begins anew.
    (home / EVENTS).unlink()
    assert watched.status().rounds_done == 0


def test_what_is_no_home_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="server's home"):
        DeploymentWatch(tmp_path)
    home = make_home(tmp_path)
    for name in ("plan.toml", "run.json", "enrolment.json", EVENTS):
        (home / name).unlink()
    status = DeploymentWatch(home).status()
    assert (status.state, status.groups, status.run) == ("waiting for a plan", (), None)
    assert "waiting for a plan" in rendered("deployment_answer.html", status=status)


def test_every_event_counts_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = make_home(tmp_path)
    watched = DeploymentWatch(home)

    def slowly(progress: RunProgress, event: dict[str, object]) -> RunProgress:
        # Long enough for the others to be in the middle of it as well.
        time.sleep(0.002)
        return after(progress, event)

    monkeypatch.setattr(deployments, "after", slowly)
    together = threading.Barrier(4)

    def ask() -> list[int]:
        together.wait()
        return [group.released for group in watched.status().groups]

    with ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(ask) for _ in range(4)]
    assert [one.result() for one in asked] == [[2, 2, 2]] * 4
