"""Giving way to other work: what is counted as others', and that our own is not."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gdpfed_reproduce.background import OthersAreBusy, busy_cores

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
        ((0, 20, 0, 0), 0.0),
        ((0, 0, 0, 20), 0.0),
        ((5, 15, 0, 0), 0.5),
        ((10, 5, 2, 3), 1.2),
        ((0, 0, 0, 0, 20), 0.0),
        ((1, 0, 1, 0, 0, 2, 1), 0.5),
    ],
)
def test_others_are_seen_by_their_time(passed: tuple[float, ...], cores: float) -> None:
    assert busy_cores(BEFORE, after(*passed), seconds=10) == pytest.approx(cores)
    readings, moments = iter([BEFORE, after(*passed)]), iter([0.0, 10.0])
    assert OthersAreBusy(read=lambda: next(readings), clock=lambda: next(moments))() == (cores >= 0.5)


def test_without_proc_nobody_is_busy() -> None:
    assert busy_cores("", "", seconds=5) == 0
    assert not OthersAreBusy(read=lambda: "")()


@pytest.mark.skipif(not Path("/proc/stat").is_file(), reason="needs Linux")
@pytest.mark.processes
def test_work_at_lowest_priority_is_ours() -> None:
    """Two seconds of a nice process are in the column that is left out."""
    script = (
        "from gdpfed_reproduce.background import lower_priority\n"
        "import time\n"
        "lower_priority()\n"
        "begun = time.process_time()\n"
        "while time.process_time() < begun + 1: pass\n"
    )
    before = Path("/proc/stat").read_text()
    subprocess.run([sys.executable, "-c", script], check=True, start_new_session=True, timeout=300)
    now = Path("/proc/stat").read_text()
    nice = [int(reading.split()[2]) for reading in (before, now)]
    assert nice[1] - nice[0] >= 0.9 * TICKS
