"""A batch that gives way to other work on the same machine: lowest priority, and a run fewer while others need cores.

Place: under `pool`, for `gdpfed reproduce ... --background`. Priority alone is not enough. Linux divides its cores
between sessions first and looks at priorities only inside a session (autogroups), so a process that trains gets a
session of its own, at lowest priority too. And a run beside a test or a benchmark still takes from its caches and its
memory's speed: while others keep half a core busy or more, one run waits after its round.

Linux counts what programs of lower priority do in a column of its own ("nice"), so what is in the usual one ("user") is
others'. Others that are of lower priority themselves are not seen. Where there is no /proc (not on Linux), only the
priority is lowered.

Guarantees (tests of the same name):
  others_are_seen_by_their_time     our own runs, at lowest priority, never hold each other up.
  the_callers_session_is_untouched  its priority is what it was, whatever is trained for it.
  the_session_is_lowered_in_the_end where others lower theirs at the same moment, too.
"""

import contextlib
import os
import random
import time
from collections.abc import Callable
from pathlib import Path

__all__ = ["OthersAreBusy", "busy_cores", "lower_priority"]

_LOWEST = 19
# Cores that others must take to be given way to.
_BUSY = 0.5
_STAT = Path("/proc/stat")
_AUTOGROUP = Path("/proc/self/autogroup")


def _write_autogroup(text: str) -> object:
    return _AUTOGROUP.write_text(text, encoding="ascii")


def lower_priority() -> None:
    """Of this process, which leaves the session of whoever started it, and of all that it starts from now on."""
    os.nice(_LOWEST)
    with contextlib.suppress(OSError):
        os.setsid()
        _lower_session()


def _lower_session(write: Callable[[str], object] = _write_autogroup, *, patience: float = 10.0) -> None:
    """Linux takes one such change in a tenth of a second from all users together, and refuses others meanwhile."""
    end = time.monotonic() + patience
    while True:
        try:
            write(str(_LOWEST))
            return
        except BlockingIOError:
            if time.monotonic() > end:
                return
            time.sleep(random.uniform(0.1, 0.3))  # noqa: S311 - when to ask again


def _read() -> str:
    try:
        return _STAT.read_text(encoding="ascii")
    except OSError:
        return ""


def busy_cores(before: str, after: str, *, seconds: float) -> float:
    """How many cores others kept busy between two readings of /proc/stat.

    Of programs alone: what the system does for them is in one column, ours too.
    """
    if not before or not after or seconds <= 0:
        return 0.0
    first, last = (int(reading.split(maxsplit=2)[1]) for reading in (before, after))
    return (last - first) / os.sysconf("SC_CLK_TCK") / seconds


class OthersAreBusy:
    """Whether others took half a core or more since it was last called."""

    def __init__(self, *, read: Callable[[], str] = _read, clock: Callable[[], float] = time.monotonic) -> None:
        self._read, self._clock = read, clock
        self._at, self._seen = clock(), read()

    def __call__(self) -> bool:
        """Looks, and remembers what it saw."""
        before, since = self._seen, self._at
        self._at, self._seen = self._clock(), self._read()
        return busy_cores(before, self._seen, seconds=self._at - since) >= _BUSY
