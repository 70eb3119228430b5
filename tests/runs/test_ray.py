"""A real Ray cluster of two nodes on loopback, one for all tests of this file; the last one ends its heart."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gdpfed.errors import GdpfedError, InputError
from gdpfed.runs.folder import RunFolder, open_run
from gdpfed.runs.simulate import Progress, simulate
from gdpfed.tasks.task import Task
from gdpfed.training.engines import Engine
from tests.runs.conftest import start
from tests.runs.test_simulate import content
from tests.training.ray_cluster import environment

ROOT = Path(__file__).parents[2]
if os.environ.get("CI") != "true":
    pytest.importorskip("ray", reason="needs gdpfed[ray]")
# Ray's sockets and pipes end with the process.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.xdist_group("ray"),
]


@pytest.fixture(scope="module")
def cluster() -> Iterator[dict[str, Any]]:
    # Not under pytest's folders: a socket's name has 107 letters at most.
    folder = Path(tempfile.mkdtemp(prefix="gdpfed-", dir="/tmp"))  # noqa: S108
    with (folder / "errors.txt").open("w") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.training.ray_cluster", str(folder)],
            cwd=ROOT,
            env=environment(folder),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line.startswith("{"), (folder / "errors.txt").read_text()[-2000:]
        yield json.loads(line)
    finally:
        process.stdin.close()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, bytes, bytes]:
    """What the local engine gives."""
    from gdpfed.tasks.task import load_task
    from tests.runs.conftest import TINY

    folder = tmp_path_factory.mktemp("local")
    (folder / "tiny.toml").write_text(TINY)
    run = start(load_task(str(folder / "tiny.toml")), folder / "run")
    simulate(run, num_workers=1)
    return content(run.path)


def on(cluster: dict[str, Any]) -> Engine:
    return Engine(name="ray", ray_address=cluster["address"])


def interrupted(run: RunFolder, after: int, **how: Any) -> None:
    """Trains so many rounds and stops."""

    def watch(progress: Progress) -> None:
        if progress.record.round_number + 1 == after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        simulate(run, watch=watch, **how)


def test_ray_gives_the_bytes_of_the_local_engine(
    cluster: dict[str, Any], expected: tuple[bytes, bytes, bytes], tiny: Task, tmp_path: Path
) -> None:
    run = start(tiny, tmp_path / "whole")
    simulate(run, num_workers=None, engine=on(cluster))
    assert content(run.path) == expected
    there_and_here = start(tiny, tmp_path / "part")
    interrupted(there_and_here, 3, num_workers=1, engine=on(cluster))
    simulate(open_run(there_and_here.path), num_workers=2)
    assert content(there_and_here.path) == expected


def workers_of(cluster: dict[str, Any]) -> list[int]:
    """The actors' processes, by Ray's name for them."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                title = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if title.startswith(b"ray::_Worker") and _below(int(entry.name), cluster["keeper"]):
                found.append(int(entry.name))
    return found
