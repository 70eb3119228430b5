"""Progress from a file that grows."""

import io
import json
from pathlib import Path

import pytest

from gdpfed.cli.flower_display import line, result, watching
from gdpfed.flower.operate.progress import EventReader, RunProgress, after
from gdpfed.flower.server.events import EVENTS as EVENTS_FILE
from gdpfed.flower.server.events import events_into
from gdpfed.planning.methods import make_plan
from gdpfed.planning.plan import Plan
from gdpfed.planning.settings import PlanSettings
from gdpfed.privacy.budgets import parse_compact

EVENTS = [
    {"event": "begin", "round": 0},
    {"event": "stage", "stage": "keys", "asked": ["a", "b", "c"]},
    {"event": "answered", "stage": "keys", "client": "b"},
    {"event": "answered", "stage": "keys", "client": "a"},
    {"event": "dropped", "stage": "keys", "client": "c"},
    {"event": "charged", "round": 0, "groups": [0]},
    {"event": "released", "round": 0, "groups": [0], "lost": 0},
    {"event": "aborted", "round": 0, "groups": [1], "lost": 1},
    {"event": "something new"},
    {"event": "round", "round": 0, "accuracy": 12.5, "loss": 2.25, "epsilons": [1.001, 0.0]},
    {"event": "finished"},
]


@pytest.fixture
def plan() -> Plan:
    return make_plan(parse_compact("2@2,1@8"), PlanSettings(num_rounds=3, participation=0.9, accountant="rdp"))


def test_half_a_line_is_left_for_later(tmp_path: Path) -> None:
    path = tmp_path / "progress.jsonl"
    reader = EventReader(path)
    assert reader.new() == []
    text = "".join(json.dumps(event) + "\n" for event in EVENTS).encode()
    found = []
    with path.open("wb") as file:
        for start in range(0, len(text), 7):
            file.write(text[start : start + 7])
            file.flush()
            found += reader.new()
    assert found == EVENTS
    with path.open("ab") as file:
        file.write(b"nonsense\n[1]\n")
    assert reader.new() == []


def test_progress_follows_the_events(plan: Plan) -> None:
    progress = RunProgress()
    for event in EVENTS[:5]:
        progress = after(progress, event)
    assert line(progress, plan) == "round 1/3  keys     2 of 3 answered, lost c"
    for event in EVENTS[5:]:
        progress = after(progress, event)
    assert progress.ended
    assert (progress.groups[0].released, progress.groups[1].aborted, progress.rounds_done) == (1, 1, 1)
    assert result(progress) == "round 1 done  accuracy 12.50 %  loss 2.250  epsilon 1.01 0.00  1 sums without a release"


@pytest.mark.parametrize("on_terminal", [False, True])
def test_what_is_shown(plan: Plan, monkeypatch: pytest.MonkeyPatch, on_terminal: bool) -> None:
    out = io.StringIO()
    monkeypatch.setattr(out, "isatty", lambda: on_terminal)
    monkeypatch.setattr("sys.stdout", out)
    progress = RunProgress()
    with watching(plan, quiet=False) as watch:
        for event in EVENTS:
            progress = after(progress, event)
            watch(progress)
    assert "accuracy 12.50 %" in out.getvalue()
    assert "2 of 3 answered, lost c" in out.getvalue()
    if not on_terminal:
        assert len(out.getvalue().splitlines()) == 2


def test_events_are_for_the_operator_only(tmp_path: Path) -> None:
    path = tmp_path / EVENTS_FILE
    write = events_into(path, run="one")
    write("stage", stage="keys", asked=["a"])
    assert path.stat().st_mode & 0o777 == 0o600
    events_into(path, run="one")("finished")
    reader = EventReader(path)
    assert [event["event"] for event in reader.new()] == ["started", "stage", "started", "finished"]
    events_into(path, run="two")
    assert [event["run"] for event in EventReader(path).new()] == ["two"]
