"""The keeper, with real processes: whatever it started is ended, whatever happens."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gdpfed.flower.operate import keeper

pytestmark = pytest.mark.processes

# A process that starts another one in a session of its own, which ignores SIGTERM, and says both ids.
STUBBORN = """
import os, signal, subprocess, sys, time
inner = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
child = subprocess.Popen([sys.executable, "-c", inner], start_new_session=True)
open(sys.argv[1], "w").write(f"{os.getpid()} {child.pid} ")
if sys.argv[2] == "leave":
    sys.exit(7)
time.sleep(600)
"""
PARENT = """
import subprocess, sys, time
kept = subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE, start_new_session=True)
time.sleep(600)
"""


def command(folder: Path, how: str) -> list[str]:
    said = str(folder / "said")
    stubborn = [sys.executable, "-c", STUBBORN, said, how]
    return [sys.executable, "-I", "-S", keeper.__file__, str(folder / "log"), *stubborn]


def said(folder: Path) -> list[int]:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            words = (folder / "said").read_text().split()
            if len(words) == 2:
                return [int(word) for word in words]
        time.sleep(0.02)
    raise AssertionError("the process did not start")


def gone(process: int, *, within: float = 10.0) -> bool:
    deadline = time.monotonic() + within
    while time.monotonic() < deadline:
        if not Path(f"/proc/{process}").exists():
            return True
        time.sleep(0.02)
    return False


def test_nothing_outlives_the_keeper(tmp_path: Path) -> None:
    for how, expected in (("stay", 0), ("leave", 7)):
        folder = tmp_path / how
        folder.mkdir()
        with subprocess.Popen(command(folder, how), stdin=subprocess.PIPE, start_new_session=True) as kept:
            processes = said(folder)
            if how == "stay":
                assert set(keeper.descendants(kept.pid)) == set(processes)
                kept.send_signal(signal.SIGTERM)
            assert kept.wait(20) == expected
        assert all(gone(process) for process in processes)


def test_nothing_outlives_the_parent(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT, *command(tmp_path, "stay")]) as parent:
        processes = said(tmp_path)
        assert all(Path(f"/proc/{process}").exists() for process in processes)
        kept = keeper.descendants(parent.pid)[0]
        os.kill(parent.pid, signal.SIGKILL)
        parent.wait()
    assert all(gone(process) for process in [*processes, kept])
