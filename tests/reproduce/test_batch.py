import dataclasses
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gdpfed.errors import InputError
from gdpfed.planning.plan import Plan
from gdpfed.planning.plan_file import save_plan
from gdpfed.tasks.task import Task
from gdpfed_reproduce import batch
from gdpfed_reproduce.batch import Batch, Job, cores_of, finished_seconds, plan_jobs, run_key, train_jobs

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parents[2]
SCRIPT = """\
import sys
from pathlib import Path
from gdpfed_reproduce.batch import Batch, Job, plan_jobs, train_jobs
from gdpfed.tasks.task import load_task
out = Path(sys.argv[1])
jobs = [Job(name="tiny", task=load_task(sys.argv[2]), seed=seed) for seed in (1,)]
planned = plan_jobs(jobs, out=out, num_processes=1)
for event in train_jobs(planned, Batch(out=out, num_processes=1, threads_each=1)):
    pass
"""


def test_same_content_same_key(tiny: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = run_key(tiny, plan="a", seed=1)
    assert key == run_key(dataclasses.replace(tiny), plan="a", seed=1)
    faster = dataclasses.replace(tiny, settings=dataclasses.replace(tiny.settings, learning_rate=0.2))
    others = {run_key(faster, plan="a", seed=1), run_key(tiny, plan="b", seed=1), run_key(tiny, plan="a", seed=2)}
    monkeypatch.setattr(batch, "RESULTS_VERSION", batch.RESULTS_VERSION + 1)
    others.add(run_key(tiny, plan="a", seed=1))
    assert len(others | {key}) == 5


def test_plans_are_made_once(tiny: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = [Job(name="tiny", task=tiny, seed=seed) for seed in (1, 2)]
    seen: list[tuple[int, int]] = []
    first = plan_jobs(jobs, out=tmp_path, num_processes=2, watch=lambda *counts: seen.append(counts))
    assert seen == [(1, 1)]
    assert [job.state for job in first] == ["missing", "missing"]
    assert len({job.key for job in first}) == 2
    again = plan_jobs(jobs, out=tmp_path, num_processes=2, watch=lambda *counts: seen.append(counts))
    assert seen == [(1, 1)]
    assert [job.folder for job in again] == [job.folder for job in first]
    # Other code plans again, and comes to the same plan, hence to the same runs.
    monkeypatch.setattr(batch, "code_hash", lambda *_: "changed")
    assert plan_jobs(jobs, out=tmp_path, num_processes=1)[0].key == first[0].key
    assert len(list((tmp_path / "plans").glob("*.json"))) == 2
    assert len(list((tmp_path / "plans").glob("*.toml"))) == 1


def test_two_batches_save_one_plan(tiny: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saving: list[Path] = []

    def slowly(plan: Plan, path: Path) -> None:
        saving.append(path)
        time.sleep(0.3)
        save_plan(plan, path)

    monkeypatch.setattr(batch, "save_plan", slowly)
    with ThreadPoolExecutor(4) as pool:
        made = [pool.submit(batch._plan, lambda _: None, tiny, tmp_path / f"{place}.json") for place in range(4)]
        assert [one.result() for one in made] == [None] * 4
    assert len(saving) == 1


def test_two_batches_share_a_folder(tiny_file: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "out"), str(tiny_file)]
    running = [subprocess.Popen(command, env=environment) for _ in range(2)]
    assert [process.wait(timeout=400) for process in running] == [0, 0]
    (run,) = (tmp_path / "out" / "runs").iterdir()
    # Each round was trained once.
    assert len((run / "timing.jsonl").read_text().splitlines()) == 6
    assert (finished_seconds(run) or 0) > 0


def test_a_run_for_each_core() -> None:
    assert cores_of(2, num_runs=10) == (2, 1)
    assert cores_of(8, num_runs=3) == (3, 2)
    assert cores_of(1, num_runs=5) == (1, 1)
    assert cores_of(2, num_runs=1) == (1, 2)


def test_folder_that_cannot_be_made(tiny: Task, tmp_path: Path) -> None:
    (tmp_path / "out").write_text("a file")
    with pytest.raises(InputError, match="--out"):
        plan_jobs([Job(name="tiny", task=tiny, seed=1)], out=tmp_path / "out", num_processes=1)


def test_nothing_to_do(tmp_path: Path) -> None:
    assert list(train_jobs([], Batch(out=tmp_path, num_processes=2, threads_each=1))) == []
