"""Runs one command, and ends whatever it started: when it ends, when it is told to, and when its own parent is gone.

Place: operations; a program of its own (``python keeper.py LOG COMMAND ...``) that needs the standard library only.
Flower's processes start others, some in sessions of their own, so that ending a process group is not enough. The keeper
is their reaper (Linux): orphans become its children, and it leaves only when it has none.

Its parent holds the other end of its standard input. A parent that dies in whatever way, SIGKILL too, closes it.

Guarantees (tests of the same name):
  nothing_outlives_the_keeper   a process that left its group and session is ended too.
  nothing_outlives_the_parent   after SIGKILL of the parent, no process is left.
"""

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

__all__ = ["descendants", "main"]

_PR_SET_CHILD_SUBREAPER = 36
_GRACE_SECONDS = 3.0
_PAUSE_SECONDS = 0.05


def descendants(process: int) -> list[int]:
    """All processes below ``process``, itself not among them; those nearest to it first."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                # The second field is a name in brackets, in which anything may stand.
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                parents.setdefault(parent, []).append(int(entry.name))
    below: list[int] = []
    level = parents.get(process, [])
    while level:
        below += level
        level = [child for parent in level for child in parents.get(parent, [])]
    return below


def _signal(process: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, number)


def _reap(*, all_but: int | None = None) -> None:
    """Takes leave of children that ended; orphans are children too."""
    for process in descendants(os.getpid()):
        if process != all_but:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(process, os.WNOHANG)


def _end_all(*, gently: bool) -> None:
    """Asks all that is below to end, then makes it."""
    deadline = time.monotonic() + (_GRACE_SECONDS if gently else 0.0)
    for process in descendants(os.getpid()) if gently else []:
        _signal(process, signal.SIGTERM)
    while time.monotonic() < deadline:
        _reap()
        if not descendants(os.getpid()):
            return
        time.sleep(_PAUSE_SECONDS)
    while left := descendants(os.getpid()):
        for process in left:
            _signal(process, signal.SIGKILL)
        time.sleep(_PAUSE_SECONDS)
        _reap()


def main(arguments: list[str]) -> int:
    """Runs ``arguments[1:]`` with its output in the file ``arguments[0]``; returns the command's exit code."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    asked, ask = os.pipe()
    os.set_blocking(ask, False)
    signal.set_wakeup_fd(ask)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
        signal.signal(number, lambda *_: None)
    with open(arguments[0], "ab") as log:
        command = subprocess.Popen(arguments[1:], stdin=subprocess.DEVNULL, stdout=log, stderr=log)  # noqa: S603 - ours
    while True:
        ready, _, _ = select.select([asked, sys.stdin.fileno()], [], [])
        is_alone = sys.stdin.fileno() in ready and not os.read(sys.stdin.fileno(), 1)
        numbers = os.read(asked, 64) if asked in ready else b""
        code = command.poll()
        if code is not None:
            _end_all(gently=False)
            return code if code >= 0 else 128 - code
        if is_alone or signal.SIGTERM in numbers or signal.SIGINT in numbers:
            _end_all(gently=True)
            return 0
        # The command itself is left to ``poll``.
        _reap(all_but=command.pid)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
