"""A node's secret coin in a rotation, and an answer that does not tell how it fell.

Place: the last thing that a node does about an input. Rows, files, noise and masks are done, and the answer of whoever
sends zero is ready, before the coin is tossed. The coin comes from the operating system, is compared exactly, and lives
in this process's memory only. Heads: a thread trains, and makes the answer with its update. Tails: nothing is done.
Either way the node sleeps until a fixed moment, takes what is there, and sleeps until the answer leaves. What is not
there by then is stopped.

Guarantees (tests of the same name):
  the_coin_is_exact            its probability is the plan's, to the last bit.
  both_sides_take_as_long      an update and nothing are handed over at the same moment.
  what_is_late_is_zero         and what fails is, too.
  what_is_late_is_stopped      at its next step in Python; nothing else would end it before the answer leaves.
  one_at_a_time                of all processes and threads; what was forked meanwhile does not hold the lock.

Does not: stop a training inside one long call of a library, or keep it from ending its process.
"""

import contextlib
import ctypes
import fcntl
import math
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

__all__ = ["alone", "hidden_update", "next_moment", "sleep_until", "toss"]


def toss(rate: float) -> bool:
    """True with probability ``rate``, which a float has as a fraction of whole numbers."""
    numerator, denominator = rate.as_integer_ratio()
    return secrets.randbelow(denominator) < numerator


# By thread and path: the locks that this process holds.
_held: dict[tuple[int, Path], IO[bytes]] = {}


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Holds a lock on a file that is there, against all other processes and threads that do; again for who has it."""
    key = (threading.get_ident(), path.resolve())
    if key in _held:
        yield
        return
    with path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        _held[key] = file
        try:
            yield
        finally:
            del _held[key]
            # Not by closing alone: a process that a training started may have the file, too.
            fcntl.flock(file, fcntl.LOCK_UN)


def _let_go_in_child() -> None:
    """What a training forked must not hold the lock after its parent's death. The parent's copy stays locked."""
    for file in _held.values():
        file.close()
    _held.clear()


os.register_at_fork(after_in_child=_let_go_in_child)


def sleep_until(moment: float) -> None:
    """Until this moment of the monotonic clock."""
    while (left := moment - time.monotonic()) > 0:
        time.sleep(left)


def next_moment(moment: float, *, every: float) -> float:
    """The moment, or if it has passed, the next one of those that follow ``every`` so many seconds.

    What is late, because a training still runs, is then late by a round number that it shares with all that is late.
    """
    now = time.monotonic()
    if now <= moment:
        return moment
    return moment + math.ceil((now - moment) / every) * every


def hidden_update(train: Callable[[], bytes], *, says_yes: bool, nothing: bytes, ready_at: float) -> bytes:
    """What ``train`` returns if the coin says yes and it is ready in time, else ``nothing``; at ``ready_at``."""
    trained: list[bytes] = []

    def run() -> None:
        # Whatever it is, nobody is told: not by a trace on standard error either.
        with contextlib.suppress(BaseException):
            trained.append(train())

    # A daemon: what is late must not hold the process back.
    thread = threading.Thread(target=run, daemon=True)
    if says_yes and time.monotonic() < ready_at:
        with contextlib.suppress(RuntimeError, MemoryError):
            thread.start()
    sleep_until(ready_at)
    if trained:
        return trained[0]
    if thread.is_alive() and thread.ident is not None:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(SystemExit))
    return nothing
