"""Whom the server waits for: nodes that die, come back, or are slow, in the middle of every stage."""

import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from flwr.app import Message
from flwr.proto.node_pb2 import NodeInfo

from gdpfed.flower.server import transport
from gdpfed.flower.server.deployment_settings import DeploymentSettings
from gdpfed.flower.server.waiting import Patience, lost_since
from tests.flower.federations import FIRST_NODE, Federation, stage_of
from tests.flower.in_process_grid import InProcessGrid

STAGES = ("keys", "shares", "input", "agree", "reveal")
# Long enough that nobody gets there.
LONG = {f"{stage}_seconds": 600.0 for stage in STAGES} | {"dropout_rate": 0.3}


def patience(*, is_rotation: bool = False, seconds: float = 600.0) -> Patience:
    return Patience(settings=DeploymentSettings(input_seconds=seconds), is_rotation=is_rotation)


def test_times_follow_a_nodes_own_answers() -> None:
    known = patience()
    assert known.seconds("input", 1) == 600
    known.answered("input", 1, 30.0)
    known.answered("input", 1, 2.0)
    assert known.seconds("input", 1) == 150
    # Nobody else's time depends on it, nor that of another stage.
    assert known.seconds("input", 2) == 600
    assert known.seconds("agree", 1) == 120
    known.answered("agree", 1, 0.1)
    assert known.seconds("agree", 1) == 60
    known.answered("input", 1, 1000.0)
    assert known.seconds("input", 1) == 600
    short = patience(seconds=40.0)
    short.answered("input", 1, 1.0)
    assert short.seconds("input", 1) == 40


def test_an_input_has_its_fixed_moment() -> None:
    known = patience(is_rotation=True)
    known.answered("input", 1, 30.0)
    known.answered("agree", 1, 1.0)
    assert known.seconds("input", 1) == 600
    assert known.undisturbed("input") == 30
    assert (known.seconds("agree", 1), known.undisturbed("agree")) == (60, 0)
    assert patience().undisturbed("input") == 0


def test_who_is_gone() -> None:
    assert lost_since(1, {1: "a"}, {1: "a", 2: "b"}) is None
    assert lost_since(1, {1: "a"}, {2: "b"}) == "went offline"
    assert lost_since(1, {1: "a"}, {1: "b"}) == "was started again, and has lost its message"


def killed_at(federation: Federation, stage: str, *, comes_back: bool, victim: int = 1) -> InProcessGrid:
    """A node takes its message, and dies of it: once."""
    dead: list[str] = []

    def deliver(client: int, message: Message) -> bool:
        if client != victim or stage_of(message) != stage or dead:
            return True
        dead.append(stage)
        if comes_back:
            grid.restarts[FIRST_NODE + victim] = 1
        else:
            grid.offline.add(FIRST_NODE + victim)
        return False

    grid = federation.grid(deliver=deliver)
    return grid


@pytest.fixture
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "LOOK_SECONDS", 0.02)
    monkeypatch.setattr(transport, "TELL_SECONDS", 0.0)


@pytest.mark.training
@pytest.mark.usefixtures("_soon")
@pytest.mark.parametrize("comes_back", [False, True])
@pytest.mark.parametrize("stage", STAGES)
def test_nobody_waits_for_the_dead(stage: str, comes_back: bool, tmp_path: Path) -> None:
    """With ten minutes for every stage the round is over in seconds, and released."""
    federation = Federation(tmp_path, sizes=(5,), epsilons=(4.0,), participation=1.0, rounds=1, settings=LONG)
    began = time.monotonic()
    federation.serve(killed_at(federation, stage, comes_back=comes_back))
    assert time.monotonic() - began < 20
    assert federation.states() == {(0, 0): ["published"]}
    why = "was started again, and has lost its message" if comes_back else "went offline"
    assert f"{stage}: '1' {why}: the round goes on without it" in federation.server_log


@pytest.mark.training
@pytest.mark.usefixtures("_soon")
def test_the_log_says_whom_it_waits_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "LOOK_SECONDS", 1.0)
    federation = Federation(tmp_path, sizes=(5,), epsilons=(4.0,), participation=1.0, rounds=1, settings=LONG)
    federation.serve(killed_at(federation, "input", comes_back=False))
    (line,) = [line for line in federation.server_log.splitlines() if "input: waiting for" in line]
    assert "waiting for 1, until" in line
    assert "0, 1" not in line
    events = [json.loads(line) for line in (federation.home.path / "progress.jsonl").read_text().splitlines()]
    (asked,) = [event for event in events if event["event"] == "stage" and event["stage"] == "input"]
    assert asked["until"] - asked["time"] == pytest.approx(600, abs=1)
    assert asked["online"] == asked["asked"] == ["0", "1", "2", "3", "4"]
    (lost,) = [event for event in events if event["event"] == "dropped"]
    assert (lost["client"], lost["stage"], lost["why"]) == ("1", "input", "went offline")


class LoneNode:
    """A Grid with one node, number 7, which is asked and never answers by itself."""

    def get_nodes(self) -> list[NodeInfo]:
        return [NodeInfo(node_id=7)]

    def push_messages(self, messages: list[Message]) -> list[str]:
        return ["one" for _ in messages]

    def pull_messages(self, _: list[str]) -> list[Message]:
        return []


def asked(grid: LoneNode, *, is_rotation: bool = False) -> list[str]:
    """What the log says when the node is asked for its input and gives none."""
    # As a process of Flower's runtime is told who it is.
    InProcessGrid({})
    settings = DeploymentSettings(answer_seconds=0.4, poll_seconds=0.01)
    lines: list[str] = []
    made = transport.GridTransport(
        grid=grid,  # type: ignore[arg-type]
        enrolment=SimpleNamespace(clients=[SimpleNamespace(name="a")]),  # type: ignore[arg-type]
        settings=settings,
        patience=Patience(settings=settings, is_rotation=is_rotation),
        take_standing=lambda *_: None,
        log=lambda text, **_: lines.append(text),
        events=lambda *_, **__: None,
    )
    made._nodes[0] = 7
    assert list(made.exchange("input", {0: b"packet"})) == []
    return lines


@pytest.mark.usefixtures("_soon")
@pytest.mark.parametrize("is_rotation", [False, True])
def test_nobody_is_given_up_before_the_moment(is_rotation: bool) -> None:
    """Of a plan against the server: a node that seems to be away while its input waits is not lost for that."""
    looks: list[float] = []

    class Away(LoneNode):
        """The node is there when it is asked, and then it is not."""

        def get_nodes(self) -> list[NodeInfo]:
            looks.append(time.monotonic())
            return super().get_nodes() if len(looks) == 1 else []

    asked(Away(), is_rotation=is_rotation)
    assert (looks[1] - looks[0] >= 0.4) is is_rotation


def test_flowers_own_word_of_a_loss_is_heard() -> None:
    """The SuperLink reports a node that is gone in its own name; ten minutes would pass if that were not heard."""

    class Reporting(LoneNode):
        def pull_messages(self, _: list[str]) -> list[Any]:
            metadata = SimpleNamespace(reply_to_message_id="one", src_node_id=1)
            return [SimpleNamespace(metadata=metadata, has_error=lambda: True, error=SimpleNamespace(code=5))]

    began = time.monotonic()
    assert asked(Reporting()) == ["input: 'a' went offline (Flower's error 5): the round goes on without it"]
    assert time.monotonic() - began < 20
