"""`gdpfed reproduce main` at scale smoke, as CI runs it: real processes, a real SIGKILL, and the table at the end."""

import fcntl
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gdpfed_reproduce.batch import Event, PlannedJob
from gdpfed_reproduce.estimate import cost_of
from gdpfed_reproduce.experiments import EXPERIMENTS, SMOKE, cells_of
from gdpfed_reproduce.records import load_records
from tests.cli.test_cli import call

pytestmark = pytest.mark.processes

SOURCE = Path(__file__).parents[2] / "src"
COMMAND = [sys.executable, "-c", "from gdpfed.cli import main; main()", "reproduce"]
MAIN = ["main", "--datasets", "fmnist", "--scale", "smoke", "--out", "out"]


def environment() -> dict[str, str]:
    path = os.pathsep.join([str(SOURCE), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": path, "GDPFED_CACHE": "off"}


def is_locked(folder: Path) -> bool:
    with (folder / ".lock").open("r") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def test_killed_batch_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    runs = tmp_path / "out" / "runs"
    before_all = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    begun = time.monotonic()
    first = subprocess.Popen([*COMMAND, *MAIN], env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    # Killed when two runs are finished and another is in the middle.
    while time.monotonic() < begun + 500:
        finished = list(runs.glob("*/model.safetensors"))
        halfway = [
            path.parent
            for path in runs.glob("*/checkpoint.safetensors")
            if not path.with_name("model.safetensors").exists()
        ]
        if len(finished) >= 2 and halfway:
            break
        time.sleep(0.02)
    first.kill()
    out, _ = first.communicate(timeout=30)
    assert b"main on fmnist: 11 cells (6 of them the paper's) x 1 seed" in out
    assert b"embedded fmnist-mini images" in out
    assert len(finished) >= 2
    assert halfway
    time.sleep(0.5)
    assert not any(is_locked(path.parent) for path in runs.glob("*/.lock"))
    before = {path: path.stat().st_mtime_ns for path in runs.glob("*/model.safetensors")}
    assert len(before) < 11

    second = subprocess.run([*COMMAND, *MAIN], env=environment(), capture_output=True, text=True, timeout=900)
    assert second.returncode == 0, second.stderr
    assert f"{11 - len(before)} of 11 runs to make" in second.stdout
    assert "11 of 11 runs done" in second.stdout
    assert "simulation: not a private release" in second.stdout
    assert "6 of 50 rounds" in second.stdout
    assert {path: path.stat().st_mtime_ns for path in before} == before
    # All of it within three minutes of one core, however busy the machine is.
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime < before_all + 180

    # The run that was killed ends with the bytes of one that was not.
    from gdpfed.runs.folder import create_run, open_run
    from gdpfed.runs.simulate import simulate

    killed = open_run(halfway[0])
    fresh = create_run(tmp_path / "fresh", task=killed.task, plan=killed.plan, seed=killed.seed)
    simulate(fresh, num_workers=1)
    for name in ("records.jsonl", "model.safetensors"):
        assert (fresh.path / name).read_bytes() == (killed.path / name).read_bytes()

    # A second call is instant, and leaves the records as they are.
    record = tmp_path / "out" / "records" / "fmnist" / "main.json"
    written = record.read_bytes()
    begun = time.monotonic()
    third = subprocess.run([*COMMAND, *MAIN, "--json"], env=environment(), capture_output=True, text=True, timeout=60)
    assert time.monotonic() - begun < 20
    assert third.returncode == 0, third.stderr
    assert record.read_bytes() == written
    rows = {row["method"]: row for row in json.loads(third.stdout)["rows"]}
    assert list(rows) == [
        "fedavg", "dp-fedavg", "gdpfed", "pfa", "idp-fedavg", "gdpfed+",
        "gdpfed-opc", "idp-scale", "pooled", "gdpfed, inverse-variance", "gdpfed+, inverse-variance",
    ]  # fmt: skip
    assert [row["verdict"] for row in rows.values()] == ["not comparable"] * 6 + ["not in the paper"] * 5
    assert rows["gdpfed+"]["paper"] == {"mean": 75.83, "std": 0.47}
    for row in rows.values():
        # Ten classes: all learn something, none as much as without privacy would allow.
        assert 15 < row["mean"] < 80, row
        assert f"{row['mean']:.2f}" in second.stdout
    assert rows["fedavg"]["mean"] > max(rows["dp-fedavg"]["mean"], rows["gdpfed"]["mean"], 45)
    assert {(entry.parameters, entry.scale) for entry in load_records(tmp_path / "out" / "records")} == {
        (18_378, "smoke")
    }

    # Another experiment shares these runs: nothing is trained, and status knows.
    code, out, err = call(capsys, "reproduce", "convergence", "--scale", "smoke", "--out", "out", "--json")
    assert code == 0, err
    assert [row["method"] for row in json.loads(out)["rows"]] == ["fedavg", "dp-fedavg", "gdpfed", "gdpfed+"]
    assert (tmp_path / "out" / "records" / "fmnist" / "convergence.json").is_file()
    _, out, _ = call(
        capsys, "reproduce", "status", "--datasets", "fmnist", "--scale", "smoke", "--out", "out", "--json"
    )
    lines = {line["experiment"]: line for line in json.loads(out)["experiments"]}
    assert (lines["main"]["finished"], lines["main"]["recorded"], lines["main"]["seconds_known"]) == (11, 11, 0)
    assert (lines["clipping"]["runs"], lines["clipping"]["finished"]) == (9, 3)
    assert lines["clipping"]["seconds_known"] > 0


def test_bad_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    for arguments, named in (
        (("main", "--datasets", "mnist"), "did you mean 'fmnist'"),
        (("main", "--seeds", "0"), "--seeds"),
        (("main", "--seeds", "1,1"), "as which, such as 2,3"),
        (("all", "--order", "seeds"), "did you mean 'seed'"),
        (("main", "--workers", "0"), "--workers"),
        (("main", "--scale", "tiny"), "expected --scale among paper, smoke, got 'tiny'"),
        (("main", "--rounds", "0"), "num_rounds"),
        (("overhead", "--datasets", "x"), "'x'"),
    ):
        code, _, err = call(capsys, "reproduce", *arguments)
        assert code == 2
        assert named in err
        assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_missing_data_is_said_before_anything_is_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from gdpfed_reproduce import training_commands as reproduce_training

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(reproduce_training, "plan_jobs", lambda jobs, **_: [planned(tmp_path, job) for job in jobs])
    monkeypatch.setattr(reproduce_training, "train_jobs", lambda *_: pytest.fail("trained"))
    code, _, err = call(capsys, "reproduce", "main", "--datasets", "svhn", "--scale", "smoke")
    assert code == 2
    assert "cannot get the data set 'svhn'" in err


def planned(folder: Path, job: object, *, finished: bool = False) -> PlannedJob:
    from gdpfed_reproduce.batch import Job

    assert isinstance(job, Job)
    where = folder / f"{job.name}-{abs(hash((job.task.settings, job.seed)))}"
    if finished:
        where.mkdir(parents=True)
        (where / "model.safetensors").touch()
        (where / "cost.json").write_text('{"core_seconds": 60}')
    return PlannedJob(name=job.name, task=job.task, seed=job.seed, plan="p", key=where.name, folder=where)


def test_status(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from gdpfed_reproduce import status_commands as reproduce_status

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        reproduce_status,
        "found_jobs",
        lambda jobs, **_: [
            planned(tmp_path, job, finished=True) if not place else None for place, job in enumerate(jobs)
        ],
    )
    code, out, err = call(capsys, "reproduce", "status", "--datasets", "fmnist,svhn", "--workers", "2", "--json")
    assert code == 0, err
    lines = {(line["experiment"], line["dataset"]): line for line in json.loads(out)["experiments"]}
    assert set(lines) == {
        (name, dataset)
        for dataset in ("fmnist", "svhn")
        for name, made in EXPERIMENTS.items()
        if dataset in made.datasets
    }
    assert lines["main", "fmnist"]["runs"] == 33
    assert (lines["main", "fmnist"]["finished"], lines["main", "fmnist"]["missing"]) == (1, 32)
    assert lines["main", "fmnist"]["seconds_known"] == pytest.approx(32 * 60 / 2)
    assert lines["main", "fmnist"]["runs_not_known"] == 0
    assert (lines["main", "svhn"]["seconds_known"], lines["main", "svhn"]["runs_not_known"]) == (0, 33)
    assert lines["clipping", "fmnist"]["finished"] == 0
    for child in tmp_path.iterdir():
        for file in child.iterdir():
            file.unlink()
        child.rmdir()
    out = call(capsys, "reproduce", "status", "--datasets", "fmnist,svhn", "--workers", "2")[1]
    assert " 33 runs not known" in out
    assert " + " in out  # of some tables one part is known, another is not
    assert "similar finished runs" in out


def test_progress_counts_and_estimates(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from gdpfed_reproduce.batch import Job
    from gdpfed_reproduce.batch_progress import Tracker, estimate_in_words, showing

    tasks = [cell.task for cell in cells_of(EXPERIMENTS["main"], "fmnist", SMOKE)[:2]]
    jobs = [planned(tmp_path, Job(name=f"j{place}", task=task, seed=1)) for place, task in enumerate(tasks)]
    tracker = Tracker(jobs, [], num_cores=2, threads_each=1)
    assert "first rounds" in estimate_in_words(tracker.expected(), basis="")
    with showing(tracker, quiet=False) as show:
        show(Event(place=0, kind="started"))
        for number in (1, 2, 3):
            assert tracker.time_left() == "time left not known yet"
            show(Event(place=0, kind="round", rounds=number, seconds=10.0 if number == 1 else 2.0))
        # Six rounds each at two seconds: three and six are left, on two cores.
        assert tracker.expected().seconds == pytest.approx(9 * 2 / 2)
        show(Event(place=1, kind="waiting"))
        show(Event(place=0, kind="finished", rounds=6))
        assert (tracker.done, tracker.total) == (1, 2)
        # One is left, on one core.
        assert tracker.expected().seconds == pytest.approx(6 * 2)
    out = capsys.readouterr().out
    assert "about 9 s left, from the first 3 rounds" in out
    assert "another process trains it" in out
    assert "1 of 2 runs done: FMNIST (smoke), fedavg, seed 1" in out
    known = Tracker(jobs, [cost_of(tasks[0], 30.0)], num_cores=2, threads_each=1)
    assert "about 30 s, from 1 similar finished runs here" in estimate_in_words(known.expected(), basis="here")


def test_long_silences_are_broken(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where lines are printed in place of bars, a run of an hour says every five minutes how far it is."""
    from gdpfed_reproduce.batch import Job
    from gdpfed_reproduce.batch_progress import Tracker, _lines

    task = cells_of(EXPERIMENTS["main"], "fmnist", SMOKE)[0].task
    job = planned(tmp_path, Job(name="j", task=task, seed=1))
    now = 0.0
    tracker = Tracker([job], [cost_of(task, 6 * 200.0)], num_cores=1, threads_each=1)
    show = _lines(tracker, clock=lambda: now)
    show(Event(place=0, kind="started"))
    for number in range(1, 7):
        now += 200.0
        show(Event(place=0, kind="round", rounds=number, seconds=200.0))
    assert capsys.readouterr().out.splitlines() == [
        "FMNIST (smoke), fedavg, seed 1: round 2 of 6; about 13 min left",
        "FMNIST (smoke), fedavg, seed 1: round 4 of 6; about 7 min left",
        "FMNIST (smoke), fedavg, seed 1: round 6 of 6; about 0 s left",
    ]


def test_overhead(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from gdpfed_reproduce.overhead import load_overhead

    folder = str(tmp_path / "records")
    code, out, err = call(capsys, "reproduce", "overhead", "--datasets", "svhn", "--records", folder)
    assert code == 0, err
    assert "0.054" in out
    code, out, err = call(capsys, "reproduce", "overhead", "--datasets", "shakespeare", "--records", folder, "--json")
    assert json.loads(out)["rows"][0]["topk"] > 0
    assert [row.dataset for row in load_overhead(tmp_path / "records")] == ["svhn", "shakespeare"]
