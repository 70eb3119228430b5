"""Giving way to other work: what is counted as others', and that our own is not."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gdpfed_reproduce.background import OthersAreBusy, _lower_session, busy_cores

TICKS = os.sysconf("SC_CLK_TCK")
# user nice system idle iowait irq softirq steal guest guest_nice
BEFORE = "cpu  100 200 300 400 500 0 0 0 0 0\ncpu0 1 2 3\n"


def after(*seconds: float) -> str:
    first = [100, 200, 300, 400, 500, 0, 0, 0, 0, 0]
    added = [int(each * TICKS) for each in (*seconds, *[0] * (10 - len(seconds)))]
    return "cpu  " + " ".join(str(one + more) for one, more in zip(first, added, strict=True)) + "\n"


@pytest.mark.parametrize(
    ("passed", "cores"),
    [
        # User, nice, system, idle, waiting: what programs of usual priority take, and nothing else.
        ((0, 20, 0, 0), 0.0),
        ((0, 0, 0, 20), 0.0),
        ((0, 10, 10, 0), 0.0),
        ((5, 15, 0, 0), 0.5),
        ((12, 5, 2, 1), 1.2),
        ((4, 0, 1, 0, 0, 2, 1), 0.4),
    ],
)
def test_others_are_seen_by_their_time(passed: tuple[float, ...], cores: float) -> None:
    assert busy_cores(BEFORE, after(*passed), seconds=10) == pytest.approx(cores)
    readings, moments = iter([BEFORE, after(*passed)]), iter([0.0, 10.0])
    assert OthersAreBusy(read=lambda: next(readings), clock=lambda: next(moments))() == (cores >= 0.5)


def test_without_proc_nobody_is_busy() -> None:
    assert busy_cores("", "", seconds=5) == 0
    assert not OthersAreBusy(read=lambda: "")()


LOWERED = """
import mmap, os, time
from pathlib import Path
from gdpfed_reproduce.background import OthersAreBusy, lower_priority
lower_priority()
others = OthersAreBusy()
begun = time.process_time()
while time.process_time() < begun + 1:
    # Work for the system, too: pages that are taken and given back.
    with mmap.mmap(-1, 2**22) as pages:
        pages[::4096] = bytes(2**10)
print(os.getsid(0), Path("/proc/self/autogroup").read_text() if Path("/proc/self/autogroup").exists() else "")
"""


@pytest.mark.skipif(not Path("/proc/stat").is_file(), reason="needs Linux")
@pytest.mark.processes
def test_the_callers_session_is_untouched() -> None:
    """A process at lowest priority is in a session of its own, and its second of work is in the column of the nice."""
    before, mine = Path("/proc/stat").read_text(), os.getsid(0)
    autogroup = Path("/proc/self/autogroup")
    was = autogroup.read_text() if autogroup.exists() else ""
    run = subprocess.run([sys.executable, "-c", LOWERED], check=True, timeout=300, capture_output=True, text=True)
    assert int(run.stdout.split()[0]) != mine
    assert not was or run.stdout.rstrip().endswith("nice 19")
    assert (autogroup.read_text() if autogroup.exists() else "") == was
    nice = [int(reading.split()[2]) for reading in (before, Path("/proc/stat").read_text())]
    assert nice[1] > nice[0]


def test_the_session_is_lowered_in_the_end() -> None:
    written = []

    def write(text: str) -> object:
        written.append(text)
        if len(written) < 3:
            raise BlockingIOError
        return None

    _lower_session(write)
    assert written == ["19"] * 3


def test_a_session_that_cannot_be_lowered_is_left() -> None:
    def refuse(text: str) -> object:
        raise BlockingIOError(text)

    _lower_session(refuse, patience=0.1)
