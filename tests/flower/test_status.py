"""One look at homes of real runs in this process: what it says, and that it disturbs and tells nothing."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Message

from gdpfed.cli import main
from gdpfed.errors import InputError
from gdpfed.flower.node.answers import Node
from gdpfed.flower.node.own_ledger import OwnLedger
from gdpfed.flower.operate.status import NodeStatus, ServerStatus, status_of
from gdpfed.flower.shared.home_files import LOG_VARIABLE, log_lines
from gdpfed.ledger.book import Ledger
from tests.flower.federations import FIRST_NODE, Federation, stage_of


def server_status(federation: Federation) -> ServerStatus:
    found = status_of(federation.home.path)
    assert isinstance(found, ServerStatus)
    json.dumps(found.as_json(), allow_nan=False)
    return found


def node_status(federation: Federation, number: int) -> NodeStatus:
    found = status_of(federation.node_path(number))
    assert isinstance(found, NodeStatus)
    json.dumps(found.as_json(), allow_nan=False)
    return found


@pytest.mark.training
def test_a_status_says_how_a_run_stands(tmp_path: Path) -> None:
    federation = Federation(tmp_path, sizes=(3, 3), epsilons=(1.0, 4.0), participation=1.0, rounds=2)
    assert server_status(federation).state == "not started"
    seen: list[ServerStatus] = []

    def deliver(client: int, message: Message) -> bool:
        """The first node never answers in the second round's last stage; there the server is looked at."""
        if stage_of(message) == "input" and client == 5:
            seen.append(server_status(federation))
        return not (client == 0 and stage_of(message) == "reveal" and len(seen) > 1)

    grid = federation.grid(deliver=deliver)
    grid.offline = {FIRST_NODE + 1}
    federation.serve(grid)
    first, second = seen
    assert (first.state, first.round_number, first.stage) == ("running", 1, "input")
    assert first.answered == ()
    assert set(first.waiting) == {"0", "2", "3", "4", "5"}
    assert first.online is not None
    assert first.online == ("0", "2", "3", "4", "5")
    assert first.enrolled == ("0", "1", "2", "3", "4", "5")
    assert first.until is not None
    assert [loss.client for loss in first.losses] == ["1"]
    assert "is offline" in first.losses[0].why
    assert (second.round_number, second.rounds_done, second.num_rounds) == (2, 1, 2)
    assert second.seconds_a_round is not None
    assert second.seconds_left is not None
    # Keys were asked for before the first round.
    assert (second.stage_seconds["keys"][0], second.stage_seconds["shares"][0]) == (1, 2)
    with Ledger.read(federation.home.ledger_path) as ledger:
        spent = ledger.spent_by_group(ledger.state.run(federation.home.run_name))
    last = server_status(federation)
    assert last.state == "finished"
    assert {group.name: group.spent for group in last.groups} == spent
    # Two of three, less one when it counts: too few.
    assert [(group.released, group.given_up) for group in last.groups] == [(1, 1), (2, 0)]
    assert last.num_lost == 3
    assert last.losses[-1].client == "0"
    assert "did not answer" in last.losses[-1].why
    assert last.waiting == ()


@pytest.mark.training
def test_a_nodes_status_is_its_own_books(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    federation = Federation(tmp_path, sizes=(2, 2), epsilons=(1.0, 4.0), participation=1.0, rounds=2)
    before = node_status(federation, 0)
    assert (before.spent, before.spent_server, before.runs, before.last_refusal) == (0.0, 0.0, (), None)
    # One owner lowers the budget below what the plan costs: its node refuses, and the server sees that it does.
    monkeypatch.setenv(LOG_VARIABLE, "json")
    path = federation.node_path(0) / "budget.toml"
    path.write_text(path.read_text().replace("epsilon = 1.0", "epsilon = 0.1"))
    federation.serve()
    joined = node_status(federation, 3)
    budget = federation.node(3).budget
    with OwnLedger(federation.node(3)) as ledger:
        (run,) = ledger.runs.values()
        assert joined.spent == ledger.promised(budget) <= budget.epsilon
        assert (joined.runs[0].sent, joined.runs[0].asked) == (run.sent, run.asked) == (2, 2)
    assert joined.enrolment == federation.enrolment.digest.hex()
    refused = node_status(federation, 0)
    assert refused.last_refusal is not None
    assert refused.last_refusal.startswith("refused keys:")
    assert refused.num_refusals == 2
    assert server_status(federation).num_refused == 2
    assert {loss.why for loss in server_status(federation).losses} >= {"refused: its own log says why"}
    # The log that it was read from is of JSON.
    rows = [json.loads(line) for line in (federation.node_path(0) / "node.log").read_text().splitlines()]
    assert {(row["home"], row["stage"]) for row in rows} == {("node", "keys")}
    assert [text for _, text in log_lines(federation.node_path(0) / "node.log")] == [row["text"] for row in rows]


@pytest.mark.training
def test_looking_disturbs_nobody(tmp_path: Path) -> None:
    """Neither a server that writes nor a node that does; and nothing is made by looking."""
    federation = Federation(tmp_path, sizes=(2, 2), epsilons=(1.0, 4.0), participation=1.0, rounds=1)
    files = sorted(path.name for path in federation.node_path(0).iterdir())
    node_status(federation, 0)
    assert sorted(path.name for path in federation.node_path(0).iterdir()) == files

    def deliver(client: int, message: Message) -> bool:
        assert server_status(federation).state == "running"
        with federation.node(client).alone():
            node_status(federation, client)
        return True

    federation.serve(federation.grid(deliver=deliver))
    with OwnLedger(federation.node(0)) as ledger:
        (run,) = ledger.runs.values()
        node_status(federation, 0)
        ledger.reveal(run, (0, 0))
    assert federation.states() == {(0, 0): ["published"], (0, 1): ["published"]}


@pytest.mark.training
def test_a_status_tells_no_coin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same plan against the server, with coins that all say yes and all say no."""
    settings = {"dropout_rate": 0.0, "input_seconds": 9.0, "answer_seconds": 0.2}
    told = []
    for name, coin in (("yes", True), ("no", False)):
        monkeypatch.setattr(Node, "_test_coin", lambda *_, coin=coin: coin)
        federation = Federation(
            tmp_path / name, sizes=(2, 2), epsilons=(1.0, 4.0), method="gdpfed+", rounds=1, asks=1, settings=settings
        )
        federation.serve()
        run = federation.home.run_name
        statuses = [status_of(federation.home.path), *(status_of(federation.node_path(n)) for n in federation.numbers)]
        text = json.dumps([_without_times(status.as_json()) for status in statuses])
        told.append(text.replace(run, "RUN").replace(str(tmp_path / name), "HOME"))
    assert told[0] == told[1]


def _without_times(content: dict[str, Any]) -> dict[str, Any]:
    varying = ("last_event", "seconds_a_round", "stage_seconds", "enrolment")
    return {name: value for name, value in content.items() if name not in varying}


@pytest.mark.training
def test_the_command_prints_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    federation = Federation(tmp_path, sizes=(2, 2), epsilons=(1.0, 4.0), participation=1.0, rounds=1)
    federation.serve()

    def called(*words: object) -> str:
        with pytest.raises(SystemExit) as ended:
            main(["flower", "status", *map(str, words)])
        assert ended.value.code == 0
        return capsys.readouterr().out

    shown = called(federation.home.path)
    assert "finished" in shown
    assert "1 of 1 rounds done" in shown
    assert "group 2" in shown
    assert json.loads(called(federation.home.path, "--json"))["state"] == "finished"
    shown = called(federation.node_path(0))
    assert "node '0'" in shown
    assert "1 of 1 inputs" in shown
    assert json.loads(called(federation.node_path(0), "--json"))["kind"] == "node"


def test_what_is_no_home_is_said(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"server\.key or identity\.key"):
        status_of(tmp_path)
    assert os.listdir(tmp_path) == []
