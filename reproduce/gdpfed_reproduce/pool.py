"""Several processes that work through a list, report as they go, and end with their parent.

Place: under `batch`. A process for each run, rather than threads in one, so that nothing serial in one run holds up
another; each is started afresh (spawn), with one thread inside the libraries.

Guarantees (tests of the same name):
  processes_end_with_their_parent     killed or interrupted, a parent leaves no process behind.
  the_end_is_quiet                    processes whose parent listens no more say nothing.
  errors_come_back                    what a process raises is raised in the parent, and the others are ended.
  one_process_is_held                 while others are busy, at its next report; the last one never.
  a_held_process_may_die              and the parent says so, as of any other.
"""

import contextlib
import multiprocessing
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any

from gdpfed.errors import GdpfedError, InputError
from gdpfed_reproduce.background import OthersAreBusy, lower_priority

__all__ = ["Message", "Report", "run_orders"]

Report = Callable[[Any], None]
# What a process is asked: a function of a module, called with a `Report` and the arguments.
Order = tuple[Callable[..., Any], tuple[Any, ...]]
# Seconds between two looks at what others do.
_LOOK_EVERY = 5.0
# What a process is told after a report, at once or when others are done.
_GO_ON = "go on"


@dataclass(frozen=True, kw_only=True)
class Message:
    """From the process that works on the order with this place; ``is_last`` when it carries the result."""

    place: int
    content: Any
    is_last: bool


def _leave_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


def _serve(connection: Connection, in_background: bool) -> None:
    """The life of a process: take an order, work, answer; until the parent hangs up."""
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    if in_background:
        lower_priority()

    def report(content: Any) -> None:
        _tell_parent(connection, ("report", content))
        _hear_parent(connection)

    while True:
        function, arguments = _hear_parent(connection)
        try:
            answer = ("result", function(report, *arguments))
        except GdpfedError as error:
            answer = ("refused", error)
        except Exception:
            answer = ("broken", traceback.format_exc())
        _tell_parent(connection, answer)


def _hear_parent(connection: Connection) -> Any:
    """What it says; without a parent, or with one that listens no more, the end of this process."""
    try:
        return connection.recv()
    except (EOFError, OSError):
        os._exit(1)


def _tell_parent(connection: Connection, content: Any) -> None:
    try:
        connection.send(content)
    except OSError:
        os._exit(1)


@contextlib.contextmanager
def _quiet_start() -> Iterator[None]:
    """What children inherit: no interruption from the keyboard (that is the parent's business), one inner thread."""
    before = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = "1"
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if before is None:
            del os.environ["OMP_NUM_THREADS"]
        else:
            os.environ["OMP_NUM_THREADS"] = before


def _start(number: int, *, in_background: bool) -> dict[Connection, SpawnProcess]:
    context = multiprocessing.get_context("spawn")
    started = {}
    with _quiet_start():
        for _ in range(number):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, in_background), daemon=True)
            process.start()
            theirs.close()
            started[ours] = process
    return started


def _received(connection: Connection) -> tuple[str, Any]:
    try:
        kind, content = connection.recv()
    except (EOFError, ConnectionError):
        raise InputError(
            "a process that trained ended by itself (out of memory?): the same command goes on where it was; "
            "--workers 1 needs less memory"
        ) from None
    if kind == "refused":
        raise content
    if kind == "broken":
        raise RuntimeError(f"a process that trained failed:\n{content}")
    return kind, content


def run_orders(
    orders: Sequence[Order],
    *,
    num_processes: int,
    in_background: bool = False,
    gives_way: Callable[[], bool] | None = None,
    look_every: float = _LOOK_EVERY,
) -> Iterator[Message]:
    """Works through ``orders``, first come first served; yields what is reported, as it comes.

    While ``gives_way``, asked now and then, says yes, one works less: ``in_background``, while others are busy.
    """
    if not orders:
        return
    processes = _start(min(num_processes, len(orders)), in_background=in_background)
    gives_way = gives_way or (OthersAreBusy() if in_background else None)
    waiting = list(enumerate(orders))
    working: dict[Connection, int] = {}
    # The one that is to wait after its next report, and whether it does.
    held: Connection | None = None
    is_waiting = False

    def hand_out(connection: Connection) -> None:
        if waiting:
            working[connection], order = waiting.pop(0)
            _send(connection, order)

    def look(is_busy: bool) -> None:
        nonlocal held, is_waiting
        if is_busy and len(working) > 1 and held in working:
            return
        if held is not None and is_waiting:
            _send(held, _GO_ON)
        held, is_waiting = (list(working)[-1] if is_busy and len(working) > 1 else None), False

    try:
        for connection in processes:
            hand_out(connection)
        looked = time.monotonic()
        while working:
            if gives_way is not None and time.monotonic() > looked + look_every:
                look(gives_way())
                looked = time.monotonic()
            for ready in wait(list(working), timeout=None if gives_way is None else look_every):
                assert isinstance(ready, Connection)  # noqa: S101 - for the type checker
                kind, content = _received(ready)
                place = working[ready]
                if kind == "result":
                    del working[ready]
                    hand_out(ready)
                elif ready is held and len(working) > 1:
                    is_waiting = True
                else:
                    _send(ready, _GO_ON)
                yield Message(place=place, content=content, is_last=kind == "result")
    finally:
        for connection, process in processes.items():
            connection.close()
            process.terminate()
        for process in processes.values():
            process.join()


def _send(connection: Connection, content: Any) -> None:
    """To a process that may have ended: reading from it says so."""
    with contextlib.suppress(OSError):
        connection.send(content)
