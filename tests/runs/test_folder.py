import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gdpfed.errors import InputError
from gdpfed.runs.folder import create_run, is_finished, open_run
from gdpfed.runs.record import Record
from gdpfed.runs.simulate import simulate
from gdpfed.tasks.task import Task
from tests.runs.conftest import start

pytestmark = pytest.mark.training

# Forks a child that trains, kills it after a random time, and again, until it ends by itself; then the same with a new
# copy of the run, until the kills are enough. PyTorch has computed nothing in the parent.
KILLER = """
import os, random, shutil, signal, sys, time
from pathlib import Path
import torch
from gdpfed.runs.folder import open_run
from gdpfed.runs.simulate import simulate
from gdpfed.tasks.datasets import load_dataset
load_dataset("fmnist-mini")
pristine, wanted = Path(sys.argv[1]), int(sys.argv[2])
chance = random.Random(os.urandom(8))
kills = runs = 0
while kills < wanted:
    path = pristine.with_name(f"disturbed-{runs}")
    shutil.copytree(pristine, path)
    runs += 1
    while True:
        child = os.fork()
        if child == 0:
            simulate(open_run(path), num_workers=2)
            os._exit(0)
        if kills < wanted:
            time.sleep(chance.uniform(0.15, 1.2))
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        if not os.WIFSIGNALED(status):
            assert status == 0, status
            break
        kills += 1
print(kills, runs)
"""


def test_killed_anywhere_same_bytes(tiny: Task, tmp_path: Path) -> None:
    """Runs of 40 rounds, killed 20 times at random moments, against one that was left alone."""
    calm = start(tiny, tmp_path / "calm", num_rounds=40)
    pristine = start(tiny, tmp_path / "pristine", num_rounds=40)
    simulate(calm, num_workers=2)
    done = subprocess.run(
        [sys.executable, "-c", KILLER, str(pristine.path), "20"],
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    kills, runs = map(int, done.stdout.split())
    assert kills == 20
    for number in range(runs):
        for name in ("records.jsonl", "model.safetensors", "checkpoint.safetensors", "plan.toml"):
            disturbed = tmp_path / f"disturbed-{number}" / name
            assert (calm.path / name).read_bytes() == disturbed.read_bytes(), (number, name)


@pytest.mark.parametrize("averaging", [0.0, 0.8])
def test_interrupted_and_resumed(tiny: Task, tmp_path: Path, averaging: float) -> None:
    calm = start(tiny, tmp_path / "calm", averaging=averaging)
    simulate(calm, num_workers=1)
    run = start(tiny, tmp_path / "run", averaging=averaging)

    class Enough(KeyboardInterrupt):
        pass

    def stop(progress: object) -> None:
        if progress.record.round_number == 2:  # type: ignore[attr-defined]
            raise Enough

    with pytest.raises(Enough):
        simulate(run, num_workers=2, watch=stop)
    assert not open_run(run.path).is_finished
    simulate(open_run(run.path), num_workers=1)
    assert (calm.path / "model.safetensors").read_bytes() == (run.path / "model.safetensors").read_bytes()
    assert (calm.path / "records.jsonl").read_bytes() == (run.path / "records.jsonl").read_bytes()


def test_another_plan_is_refused(tiny: Task, tmp_path: Path) -> None:
    one = start(tiny, tmp_path / "one")
    simulate(one, num_workers=1)
    other = start(tiny, tmp_path / "other", num_rounds=7)
    (other.path / "checkpoint.safetensors").write_bytes((one.path / "checkpoint.safetensors").read_bytes())
    with pytest.raises(InputError, match="another plan"):
        simulate(other, num_workers=1)


def test_a_damaged_checkpoint_says_so(tiny: Task, tmp_path: Path) -> None:
    run = start(tiny, tmp_path / "run")
    (run.path / "checkpoint.safetensors").write_bytes(b"\0" * 20)
    with pytest.raises(InputError, match="damaged"):
        simulate(run, num_workers=1)


def test_a_cut_record_is_dropped(tiny: Task, tmp_path: Path) -> None:
    calm = start(tiny, tmp_path / "calm")
    simulate(calm, num_workers=1)
    run = start(tiny, tmp_path / "run")
    (run.path / "records.jsonl").write_text('{"round": 2, "accuracy": 1.0}\n{"round": 4, "accu')
    simulate(run, num_workers=1)
    assert run.records() == calm.records()


def test_a_run_is_read_without_torch(tiny: Task, tmp_path: Path) -> None:
    run = start(tiny, tmp_path / "run")
    code = (
        "import sys\nfrom pathlib import Path\nfrom gdpfed.runs.folder import open_run\n"
        "run = open_run(Path(sys.argv[1]))\n"
        "assert (run.is_finished, run.records(), run.rounds_done) == (False, [], 0)\n"
        "assert not {'torch', 'safetensors'} & set(sys.modules), 'imported too much'"
    )
    subprocess.run([sys.executable, "-c", code, str(run.path)], check=True, capture_output=True, timeout=60)


def test_how_far_a_run_is(tiny: Task, tmp_path: Path) -> None:
    run = start(tiny, tmp_path / "run", num_rounds=40)
    every = run.task.training.evaluate_every
    record = Record(
        round_number=3,
        accuracy=9.0,
        loss=1.0,
        epsilons=(1.0,),
        cohort=(4,),
        clipped=None,
        dropped=None,
        update_norm=1.0,
    )
    run.append_record(record)
    assert run.records() == [record]
    # Rounds that were done and not evaluated are counted, whether they were timed or not.
    assert run.rounds_done == 3 + every
    run.append_timing({"round": 11, "seconds": 1.0})
    with (run.path / "timing.jsonl").open("a") as file:
        file.write('[1]\n{"round": "many"}\n{"rou')
    assert run.rounds_done == 11
    with (run.path / "records.jsonl").open("a") as file:
        file.write('{"round": 4, "accu')
    assert run.records() == [record]
    assert not is_finished(run.path)
    (run.path / "model.safetensors").touch()
    assert is_finished(run.path)
    assert open_run(run.path).is_finished


def test_an_existing_run_is_not_overwritten(tiny: Task, tmp_path: Path) -> None:
    run = start(tiny, tmp_path / "run")
    with pytest.raises(InputError, match="gdpfed resume"):
        create_run(run.path, task=run.task, plan=run.plan, seed=1)
    with pytest.raises(InputError, match="run folder"):
        open_run(tmp_path)


def test_a_full_disk_stops_with_everything_whole(tiny: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calm = start(tiny, tmp_path / "calm")
    simulate(calm, num_workers=1)
    run = start(tiny, tmp_path / "run")
    calls = 0
    replace = os.replace

    def full(source: str, target: str) -> None:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        replace(source, target)

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(InputError, match=r"No space left.*gdpfed resume"):
        simulate(run, num_workers=1)
    monkeypatch.undo()
    simulate(open_run(run.path), num_workers=1)
    assert (calm.path / "model.safetensors").read_bytes() == (run.path / "model.safetensors").read_bytes()
