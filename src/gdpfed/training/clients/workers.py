"""Work on all cores: forked processes where forking is safe, threads elsewhere.

Place: below the cohort trainer, which cuts a cohort into jobs. Many small operations hold the interpreter's lock in
turn, so threads get in each other's way; processes do not. They are forked, so they share the data as it is and any
model can be trained; PyTorch's own data loader does the same. Results come back through shared memory.

Guarantees (tests of the same name):
  results_come_in_order            whoever is done first.
  a_dead_worker_is_noticed         with what to do; nothing waits for ever.
  workers_end_with_their_parent    also when it is killed.
  forks_beside_no_busy_thread      a thread that is ending may hold a lock of the matrix library: the child of that
                                   moment would wait for it for ever. Python's join returns before such an end is over.
  a_stuck_child_is_forked_again    a process that does not get through a first matrix product is ended, and another
                                   takes its place; where none does, threads work.
"""

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import Any, Protocol, TypeVar, cast

import torch
from torch import Tensor

from gdpfed.errors import GdpfedError, InputError

__all__ = ["Workers", "start_workers"]

Job = TypeVar("Job")
Taken = TypeVar("Taken", contravariant=True)
# Seconds for what takes a moment, and how many processes may be tried for one worker.
_PATIENCE = 10.0
_ATTEMPTS = 3
# (parameters, job) -> (rows, params) float64
Work = Callable[[Tensor, Job], Tensor]


class Workers(Protocol[Taken]):
    """Something that does jobs."""

    def run(self, parameters: Tensor, jobs: Sequence[Taken]) -> Iterator[Tensor]:
        """The result of each job, in order."""

    def close(self) -> None:
        """Ends them."""


def start_workers(
    work: Work[Job], *, num_workers: int, most_rows: int, num_params: int, processes: bool | None = None
) -> Workers[Job]:
    """``num_workers`` processes or threads; a result has ``most_rows`` rows of ``num_params`` numbers at most.

    Processes on Linux, and only where this process has no other threads: a child forked beside them may wait for ever
    for a lock that one of them held.
    """
    if processes is None:
        processes = num_workers > 1 and sys.platform == "linux" and threading.active_count() == 1
    if processes and _others_settle():
        forked = _Processes(work, num_workers=num_workers, most_rows=most_rows, num_params=num_params)
        if forked.are_ready():
            return forked
        forked.close(patience=0)
    return _Threads(work, num_workers=num_workers)


class _Threads(Workers[Job]):
    """Threads of this process, each with one thread inside PyTorch."""

    def __init__(self, work: Work[Job], *, num_workers: int) -> None:
        self._work = work
        self._pool = ThreadPoolExecutor(
            num_workers, thread_name_prefix="cohort", initializer=torch.set_num_threads, initargs=(1,)
        )
        self._ahead = 2 * num_workers

    def run(self, parameters: Tensor, jobs: Sequence[Job]) -> Iterator[Tensor]:
        waiting = deque(jobs)
        running: deque[Future[Tensor]] = deque()
        while waiting or running:
            while waiting and len(running) < self._ahead:
                running.append(self._pool.submit(self._work, parameters, waiting.popleft()))
            yield running.popleft().result()

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)


class _Processes(Workers[Job]):
    """Forked processes. Each has two slots for results: one is filled while the other is read."""

    def __init__(self, work: Work[Job], *, num_workers: int, most_rows: int, num_params: int) -> None:
        self._parameters = _shared(torch.empty(num_params))
        self._results = _shared(torch.empty(num_workers, 2, most_rows, num_params, dtype=torch.float64))
        self._work = work
        self._pipes: list[Connection] = []
        self._processes: list[ForkProcess] = []
        for number in range(num_workers):
            pipe, process = self._fork(number)
            self._pipes.append(pipe)
            self._processes.append(process)

    def _fork(self, number: int) -> tuple[Connection, ForkProcess]:
        context = multiprocessing.get_context("fork")
        ours, theirs = context.Pipe()
        process = context.Process(
            target=_serve,
            args=(self._work, self._parameters, self._results[number], theirs, [*self._pipes, ours]),
            name=f"cohort-{number}",
            daemon=True,
        )
        process.start()
        theirs.close()
        return ours, process

    def are_ready(self) -> bool:
        """Whether all have computed something; one that is stuck from birth gets two successors."""
        return all(self._is_ready(number) for number in range(len(self._pipes)))

    def _is_ready(self, number: int) -> bool:
        for attempt in range(_ATTEMPTS):
            if attempt:
                self._pipes[number].close()
                _end(self._processes[number])
                self._pipes[number], self._processes[number] = self._fork(number)
            with contextlib.suppress(EOFError, OSError):
                if self._pipes[number].poll(_PATIENCE) and self._pipes[number].recv():
                    return True
        return False

    def run(self, parameters: Tensor, jobs: Sequence[Job]) -> Iterator[Tensor]:
        self._parameters.copy_(parameters)
        waiting = deque(enumerate(jobs))
        # Which jobs each worker has, oldest first, and the slot of each result.
        given: list[deque[tuple[int, int]]] = [deque() for _ in self._pipes]
        done: dict[int, Tensor] = {}
        try:
            for wanted in range(len(jobs)):
                self._hand_out(waiting, given)
                while wanted not in done:
                    for pipe in wait(self._pipes):
                        worker = self._pipes.index(pipe)  # type: ignore[arg-type]  # these are pipes
                        if not given[worker]:
                            raise self._died(worker)
                        number, slot = given[worker].popleft()
                        rows = self._answer(worker)
                        done[number] = self._results[worker, slot, :rows].clone()
                    self._hand_out(waiting, given)
                yield done.pop(wanted)
        finally:
            # After an error, or when nobody wants the rest: no answer may be left for the next call.
            for worker, under_way in enumerate(given):
                for _ in under_way:
                    with contextlib.suppress(EOFError, OSError):
                        self._pipes[worker].recv()

    def _hand_out(self, waiting: "deque[tuple[int, Job]]", given: list[deque[tuple[int, int]]]) -> None:
        """One job for each who has none, then a second, so that nobody waits for us."""
        for depth in (1, 2):
            for worker, under_way in enumerate(given):
                if waiting and len(under_way) < depth:
                    number, job = waiting.popleft()
                    slot = 1 - under_way[0][1] if under_way else 0
                    under_way.append((number, slot))
                    try:
                        self._pipes[worker].send((slot, job))
                    except OSError:
                        raise self._died(worker) from None

    def _answer(self, worker: int) -> int:
        try:
            answer = self._pipes[worker].recv()
        except (EOFError, OSError):
            raise self._died(worker) from None
        if isinstance(answer, Exception):
            raise answer
        return int(answer)

    def _died(self, worker: int) -> GdpfedError:
        self._processes[worker].join(timeout=5)
        code = self._processes[worker].exitcode or 0
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        return GdpfedError(
            f"a training process ended by itself ({how}; 9 often means that memory ran out): gdpfed resume goes on "
            f"from the last finished round, and a single worker needs the least memory"
        )

    def close(self, patience: float = 10) -> None:
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join(timeout=patience)
            _end(process)


def _end(process: ForkProcess) -> None:
    if process.is_alive():
        process.kill()
        process.join()


def _others_settle() -> bool:
    """Whether every other thread of this process comes to sleep: idle pools do, threads that are ending do soon."""
    deadline = time.monotonic() + _PATIENCE
    while not (_others_sleep() and _others_sleep()):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.001)
    return True


def _others_sleep() -> bool:
    for task in Path("/proc/self/task").iterdir():
        if int(task.name) != threading.get_native_id():
            # One that has ended meanwhile is no danger.
            with contextlib.suppress(OSError):
                # The name, in brackets, may have spaces; the state follows it.
                if (task / "stat").read_text().rpartition(")")[2].split()[0] not in "SXZ":
                    return False
    return True


def _shared(tensor: Tensor) -> Tensor:
    return cast(Tensor, tensor.share_memory_())  # type: ignore[no-untyped-call]  # PyTorch has no types for it


def _first_product() -> None:
    """Takes the matrix library's locks once."""
    torch.bmm(torch.ones(2, 64, 64), torch.ones(2, 64, 64))


def _serve(work: Work[Any], parameters: Tensor, results: Tensor, pipe: Connection, others: list[Connection]) -> None:
    """Does jobs until the parent's end of the pipe is closed, which its death does too."""
    # What was inherited would keep the others' pipes open.
    for other in others:
        other.close()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    _first_product()
    pipe.send(True)
    while True:
        try:
            slot, job = pipe.recv()
            answer: int | Exception
            try:
                result = work(parameters, job)
                results[slot, : len(result)] = result
                answer = len(result)
            except GdpfedError as error:
                answer = InputError(str(error))
            except Exception:
                answer = RuntimeError(f"in a training process:\n{traceback.format_exc()}")
            pipe.send(answer)
        except (EOFError, OSError):
            os._exit(0)
