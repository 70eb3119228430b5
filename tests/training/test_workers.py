"""Work on several processes, and what happens when one dies."""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from torch import Tensor

from gdpfed.errors import GdpfedError, InputError
from gdpfed.training.clients.workers import Workers, _Processes, _Threads, start_workers

pytestmark = pytest.mark.processes

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux only")


def work(parameters: Tensor, job: int) -> Tensor:
    """Rows that tell the job; the first ones take the longest."""
    if job == -1:
        raise InputError("this job cannot be done")
    if job == -2:
        raise ValueError("an error of our own")
    if job == -3:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.03 if job % 5 == 0 else 0.0)
    return parameters.double() + torch.full((1 + job % 3, 4), float(job), dtype=torch.float64)


def start(num_workers: int) -> "Workers[int]":
    forked = num_workers > 1 and sys.platform == "linux"
    return start_workers(work, num_workers=num_workers, most_rows=3, num_params=4, processes=forked)


@pytest.mark.parametrize("num_workers", [1, 2, 3])
def test_results_come_in_order(num_workers: int) -> None:
    workers = start(num_workers)
    for offset in (0.0, 100.0):
        found = list(workers.run(torch.full((4,), offset), range(23)))
        assert [len(rows) for rows in found] == [1 + job % 3 for job in range(23)]
        assert [float(rows[0, 0]) for rows in found] == [offset + job for job in range(23)]
    assert list(workers.run(torch.zeros(4), [])) == []
    workers.close()


@pytest.mark.parametrize("num_workers", [1, 2])
def test_the_rest_may_be_left(num_workers: int) -> None:
    """A caller that stops early, or is interrupted, leaves no answers for the next call."""
    workers = start(num_workers)
    for _ in range(3):
        some = workers.run(torch.zeros(4), range(20))
        next(some)
        some.close()  # type: ignore[attr-defined]  # it is a generator
    assert [float(rows[0, 0]) for rows in workers.run(torch.zeros(4), range(7))] == list(range(7))
    workers.close()


@pytest.mark.parametrize("num_workers", [1, 2])
def test_errors_reach_the_caller(num_workers: int) -> None:
    workers = start(num_workers)
    with pytest.raises(InputError, match="this job cannot be done"):
        list(workers.run(torch.zeros(4), [1, 2, -1, 3]))
    with pytest.raises((ValueError, RuntimeError), match="an error of our own"):
        list(workers.run(torch.zeros(4), [-2]))
    assert len(list(workers.run(torch.zeros(4), [1, 2]))) == 2
    workers.close()


@LINUX
def test_a_dead_worker_is_noticed() -> None:
    workers = start(2)
    with pytest.raises(GdpfedError, match=r"signal 9.*gdpfed resume"):
        list(workers.run(torch.zeros(4), [1, 2, 3, -3, 4, 5, 6, 7]))
    with pytest.raises(GdpfedError, match="signal 9"):
        list(workers.run(torch.zeros(4), range(8)))
    workers.close()


PARENT = """
import os, sys, time, torch
from tests.training.test_workers import start
workers = start(2)
list(workers.run(torch.zeros(4), range(4)))
print(*[process.pid for process in workers._processes], flush=True)
list(workers.run(torch.zeros(4), [0] * 10**6))
"""


@LINUX
def test_workers_end_with_their_parent() -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]
    )
    assert parent.stdout is not None
    children = [int(number) for number in parent.stdout.readline().split()]
    assert len(children) == 2
    parent.kill()
    parent.wait()
    parent.stdout.close()
    limit = time.monotonic() + 20
    while any(Path(f"/proc/{child}").exists() and "Z" not in _state(child) for child in children):
        assert time.monotonic() < limit
        time.sleep(0.05)


def _state(process: int) -> str:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


@LINUX
def test_forks_beside_no_busy_thread() -> None:
    """A thread that computes is waited for; that one has ended for Python says nothing."""
    left, right, done = torch.ones(2000, 2000), torch.ones(2000, 2000), []
    busy = threading.Thread(target=lambda: done.append(torch.mm(left, right)))
    busy.start()
    workers = start(2)
    assert done
    assert [float(rows[0, 0]) for rows in workers.run(torch.zeros(4), range(7))] == list(range(7))
    workers.close()
    busy.join()


@LINUX
@pytest.mark.parametrize("stuck", [1, 100])
def test_a_stuck_child_is_forked_again(stuck: int, monkeypatch: pytest.MonkeyPatch) -> None:
    born = multiprocessing.get_context("fork").Value("i", 0)

    def first_product() -> None:
        with born:
            born.value += 1
            number = born.value
        while number <= stuck:
            pass

    monkeypatch.setattr("gdpfed.training.clients.workers._first_product", first_product)
    monkeypatch.setattr("gdpfed.training.clients.workers._PATIENCE", 2.0 if stuck == 1 else 0.3)
    workers = start(2)
    assert born.value == (3 if stuck == 1 else 4)
    assert isinstance(workers, _Processes if stuck == 1 else _Threads)
    assert [float(rows[0, 0]) for rows in workers.run(torch.zeros(4), range(7))] == list(range(7))
    workers.close()
