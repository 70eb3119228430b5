"""The deployment's page."""

import fcntl
import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gdpfed.errors import InputError
from gdpfed.flower.operate.status import ServerStatus, status_of
from gdpfed.flower.server.events import EVENTS
from gdpfed.serve import deployments
from gdpfed.serve.deployments import DeploymentWatch
from tests.flower.federations import Federation
from tests.serve.served import make_home


def test_nobody_is_named(tmp_path: Path) -> None:
    home = make_home(tmp_path)
    with (home / "ledger.lock").open("a") as held:
        # As a server does that runs.
        fcntl.flock(held, fcntl.LOCK_EX)
        watched = DeploymentWatch(home)
        status, answer = watched.status(), watched.answer()
    assert (status.state, status.rounds_done, status.num_rounds, len(status.enrolled)) == ("running", 2, 10, 12)
    assert [group.released for group in status.groups] == [2, 2, 2]
    assert "secret" in repr(status)
    assert "secret" not in repr(answer)
    assert answer["words"] == "running: 2 of 10 rounds done, accuracy 41.00 %"
    for words in ("1 answered, 1 awaited", "2 of 10", "and 0 refused", "20.0 s each", "41.00 %"):
        assert words in answer["html"]


def test_what_is_no_home_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="server's or a node's home"):
        DeploymentWatch(tmp_path)
    federation = Federation(tmp_path)
    with pytest.raises(InputError, match="got a node's"):
        DeploymentWatch(federation.node_path(0))
    # A home that is half there: the other pages are served, and nobody is named by what is wrong.
    watched = DeploymentWatch(federation.home.path)
    whole = federation.home.enrolment_path.read_text()
    federation.home.enrolment_path.write_text(whole.replace('"epsilon": 1.0', '"epsilon": "x"'))
    with pytest.raises(InputError, match=r"^this home cannot be read: gdpfed flower status \S+ says why$"):
        watched.answer()
    federation.home.enrolment_path.write_text(whole)
    federation.home.run_name_path.unlink()
    assert "no plan" in DeploymentWatch(federation.home.path).answer()["html"]


def test_a_false_plan_is_not_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = make_home(tmp_path)
    path = home / "plan.toml"
    found = status_of(home)
    # Less noise than its promise needs, and a run that claims to be of this very plan.
    lines = [
        f"noise_multiplier = {float(line.split('=')[1]) / 2}" if line.startswith("noise_multiplier") else line
        for line in path.read_text().splitlines()
    ]
    assert lines != path.read_text().splitlines()
    path.write_text("\n".join(lines) + "\n")
    monkeypatch.setattr(deployments, "status_of", lambda _: found)
    with pytest.raises(InputError, match="cannot be read"):
        DeploymentWatch(home).answer()


def test_a_home_is_read_when_it_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = make_home(tmp_path)
    looks = []

    def slowly(path: Path) -> ServerStatus:
        looks.append(path)
        # Long enough for the others to ask as well.
        time.sleep(0.05)
        found = status_of(path)
        assert isinstance(found, ServerStatus)
        return found

    monkeypatch.setattr(deployments, "status_of", slowly)
    watched = DeploymentWatch(home)
    with ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(watched.status) for _ in range(4)]
    assert [one.result().rounds_done for one in asked] == [2] * 4
    assert len(looks) == 1
    with (home / EVENTS).open("a") as file:
        file.write(json.dumps({"time": time.time(), "event": "round", "round": 2}) + "\n")
    assert watched.status().rounds_done == 3
    assert len(looks) == 2
    # Whether a process still runs is in no file.
    monkeypatch.setattr(deployments, "_LONG_AGO", -1.0)
    watched.status()
    assert len(looks) == 3
