"""A node's secret coin in a rotation, and an answer that does not tell how it fell.

Place: between a node's checks of an input and the masks. The coin comes from the operating system, is compared exactly,
and lives in this process's memory only. Heads: training runs beside, in a thread. Tails: nothing is done. Either way
the node sleeps until a fixed moment; what is not trained by then is zero. Everything after it (clipping, noise, masks,
rows, files) is the same work on an update and on zeros, and the answer leaves at a later fixed moment.

Guarantees (tests of the same name):
  the_coin_is_exact            its probability is the plan's, to the last bit.
  both_sides_take_as_long      an update and nothing are handed over at the same moment.
  what_is_late_is_zero         and what fails is, too.
"""

import fcntl
import math
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

__all__ = ["alone", "hidden_update", "next_moment", "sleep_until", "toss"]


def toss(rate: float) -> bool:
    """True with probability ``rate``, which a float has as a fraction of whole numbers."""
    numerator, denominator = rate.as_integer_ratio()
    return secrets.randbelow(denominator) < numerator


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Holds a lock on a file that is there, against all other processes and threads that do."""
    with path.open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield


def sleep_until(moment: float) -> None:
    """Until this moment of the monotonic clock."""
    while (left := moment - time.monotonic()) > 0:
        time.sleep(left)


def next_moment(moment: float, *, every: float | None) -> float:
    """The moment, or if it has passed, the next one of those that follow ``every`` so many seconds; None: no other.

    What is late, because a training still runs, is then late by a round number that it shares with all that is late.
    """
    now = time.monotonic()
    if every is None or now <= moment:
        return moment
    return moment + math.ceil((now - moment) / every) * every


def hidden_update(
    train: Callable[[], NDArray[Any]], *, says_yes: bool, nothing: NDArray[Any], ready_at: float
) -> NDArray[Any]:
    """What ``train`` returns if the coin says yes and it is ready in time, else ``nothing``; at ``ready_at``."""
    trained: list[NDArray[Any]] = []
    if says_yes:
        # A daemon: what is late must not hold the process back.
        threading.Thread(target=lambda: trained.append(train()), daemon=True).start()
    sleep_until(ready_at)
    return trained[0] if trained else nothing
