"""Runs below a folder."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from starlette.responses import JSONResponse

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


def edited(run: Path, **changes: object) -> None:
    """The last record, changed by hand."""
    *lines, last = (run / "records.jsonl").read_text().splitlines()
    lines.append(json.dumps(json.loads(last) | changes))
    (run / "records.jsonl").write_text("\n".join(lines) + "\n")


def _pipe(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def _endless(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


BAD: dict[str, Callable[[Path], object]] = {
    "removed": shutil.rmtree,
    "versions are a pipe": lambda run: _pipe(run / "versions.json"),
    "plan is a pipe": lambda run: _pipe(run / "plan.toml"),
    "accuracy is no number": lambda run: edited(run, accuracy=float("nan")),
    "epsilon is no number": lambda run: edited(run, epsilons=[1.0, float("nan"), 1.0]),
    "epsilon is too large": lambda run: edited(run, epsilons=[1.0, 10**400, 1.0]),
    "too few groups": lambda run: edited(run, epsilons=[1.0]),
    "half a character": lambda run: edited(run, measure="\ud800"),
    "deep ledger": lambda run: (run / "ledger.json").write_text("[" * 100_000),
}


@pytest.mark.parametrize("what", BAD)
def test_one_bad_run_hides_no_other(tmp_path: Path, what: str) -> None:
    write_run(tmp_path / "bad", task_of("gdpfed"), rounds=3)
    write_run(tmp_path / "good", task_of("gdpfed"))
    watched = RunList(tmp_path)
    if what == "removed":
        # Between two searches.
        watched.rows()
    BAD[what](tmp_path / "bad")
    rows = watched.rows()
    JSONResponse(rows)
    assert [(row["run"], row["state"]) for row in rows] == [("bad", "unreadable"), ("good", "finished")]
    assert rows[0]["fault"]


def test_one_bad_run_hides_no_other_whatever_its_name(tmp_path: Path) -> None:
    for name in (b"x\xfe", b"x\xff"):
        write_run(tmp_path / "run", task_of("gdpfed")).path.rename(tmp_path / os.fsdecode(name))
    rows = RunList(tmp_path).rows()
    JSONResponse(rows)
    assert [row["run"] for row in rows] == ["x\\udcfe", "x\\udcff"]
    assert all("rename it" in row["fault"] for row in rows)


def test_files_that_are_none_hold_up_nobody(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", task_of("gdpfed"), rounds=3).path
    for name in ("timing.jsonl", "remarks.json"):
        _pipe(run / name)
    watched = RunList(tmp_path)
    assert (watched.rows()[0]["round"], watched.rows()[0]["clients_per_second"]) == (3, None)
    assert "gdpfed" in watched.curves(["run"])["html"]
    for bad in (_endless, _pipe):
        bad(run / "records.jsonl")
        assert watched.rows()[0]["accuracy"] is None


def test_timings_that_cannot_be_are_not_counted(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", task_of("gdpfed"), rounds=3).path
    good = '{"round": 3, "seconds": 0.1, "clients": 40}'
    odd = (
        '{"round": 3, "seconds": NaN, "clients": 1}',
        f'{{"round": 3, "seconds": {10**400}, "clients": 1}}',
        f'{{"round": 3, "seconds": 1, "clients": {10**400}}}',
        f'{{"round": {10**400}, "seconds": -1, "clients": 1}}',
    )
    (run / "timing.jsonl").write_text("\n".join((good, *odd)) + "\n")
    rows = RunList(tmp_path).rows()
    JSONResponse(rows)
    assert (rows[0]["state"], rows[0]["round"]) == ("stopped", 3)
    assert rows[0]["clients_per_second"] == pytest.approx(400)


def test_public_data_is_said(tmp_path: Path) -> None:
    for name, method in (("one", "gdpfed"), ("two", "dp-fedavg")):
        write_run(tmp_path / name, task_of(method), rounds=3)
    edited(tmp_path / "one", public_data="a million pictures")
    watched = RunList(tmp_path)
    assert [row["public_data"] for row in watched.rows()] == ["a million pictures", ""]
    said = "rests on public data, for which no budget pays: a million pictures."
    assert watched.curves(["one", "two"])["html"].count(f"gdpfed {said}") == 1
    assert said not in watched.curves(["two"])["html"]
