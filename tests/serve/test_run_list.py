"""Runs below a folder."""

from pathlib import Path

import pytest

from gdpfed.errors import InputError
from gdpfed.runs.folder import open_run
from gdpfed.serve import run_list
from gdpfed.serve.run_list import RunList
from tests.report.synthetic import records_of, task_of, write_records, write_run


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Folders are searched at every call."""
    monkeypatch.setattr(run_list, "_SEARCHED_EVERY", 0.0)


def test_runs_are_found_below_the_folder(tmp_path: Path) -> None:
    task = task_of("gdpfed")
    write_run(tmp_path / "a" / "b" / "c" / "run", task)
    write_run(tmp_path / "top", task, rounds=3, timed=4)
    write_run(tmp_path / ".hidden" / "run", task)
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "run.toml").write_text("x = [")
    (tmp_path / "away").symlink_to(tmp_path / "a")
    rows = {row["run"]: row for row in RunList(tmp_path).rows()}
    assert list(rows) == ["a/b/c/run", "bad", "top"]
    assert rows["bad"]["state"] == "unreadable"
    assert "expected a run folder" in rows["bad"]["fault"]
    assert (rows["a/b/c/run"]["state"], rows["a/b/c/run"]["round"]) == ("finished", 10)
    top = rows["top"]
    assert (top["state"], top["round"], top["rounds"]) == ("stopped", 4, 10)
    assert top["clients_per_second"] == pytest.approx(400)
    assert top["seconds_left"] == pytest.approx(0.6)
    assert [group["promised"] for group in top["groups"]] == ["1", "2", "6"]
    assert all(0 < group["share"] < 1 for group in top["groups"])
    assert top["check"] == "checking"


def test_a_running_run_is_seen_by_its_lock(tmp_path: Path) -> None:
    write_run(tmp_path / "run", task_of("gdpfed"), rounds=3)
    watched = RunList(tmp_path)
    with open_run(tmp_path / "run").locked():
        assert watched.rows()[0]["state"] == "running"
        # Looking took no lock: the run could not have been started otherwise.
    with open_run(tmp_path / "run").locked():
        pass
    assert watched.rows()[0]["state"] == "stopped"


@pytest.mark.usefixtures("at_once")
def test_a_list_that_did_not_change_is_not_sent(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", task_of("gdpfed"), rounds=3)
    watched = RunList(tmp_path)
    watched.rows()
    before = watched.version
    watched.rows()
    assert watched.version == before
    write_records(run, records_of(run.plan, seed=1, level=80, rounds=4))
    assert watched.rows()[0]["round"] == 4
    assert watched.version != before
    (text,) = watched.unchecked()
    watched.checked(text, "")
    assert watched.rows()[0]["check"] == "verified"
    assert watched.unchecked() == []


def test_a_false_plan_is_said(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", task_of("gdpfed"))
    text = (run.path / "plan.toml").read_text()
    watched = RunList(tmp_path)
    watched.rows()
    assert watched.unchecked() == [text]
    watched.checked(text, "the plan claims too little")
    assert watched.rows()[0]["check"] == "the plan claims too little"


def test_curves_of_several_runs(tmp_path: Path) -> None:
    write_run(tmp_path / "one", task_of("gdpfed"))
    write_run(tmp_path / "two", task_of("dp-fedavg"), rounds=2)
    write_run(tmp_path / "new", task_of("gdpfed+"), rounds=0)
    write_run(tmp_path / "else", task_of("gdpfed", title="Other"))
    watched = RunList(tmp_path)
    drawn = watched.curves(["one", "two", "new"])["html"]
    assert "gdpfed reaches" in drawn
    assert "Nothing is evaluated yet in new" in drawn
    assert drawn.count("promise 1<") == 2
    assert "first evaluation" in watched.curves(["new"])["html"]
    for names, words in (
        (["one", "else"], "different title"),
        (["nothing"], "which is none"),
        (["../one"], "inside the folder"),
        ([], "from 1 to"),
        (["one"] * 13, "from 1 to"),
    ):
        with pytest.raises(InputError, match=words):
            watched.curves(names)
