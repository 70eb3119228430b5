"""The way from nothing to a finished run of four nodes, as docs/deployment.md has it, pasted into a shell."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gdpfed.flower.operate.processes import free_ports
from tests.flower.real import settle

pytestmark = [pytest.mark.processes, pytest.mark.slow]

pytest.importorskip("flwr")

PAGE = Path(__file__).parents[2] / "docs" / "deployment.md"


def test_the_whole_way_on_one_machine(tmp_path: Path) -> None:
    (commands,) = re.findall(r"^```bash\n(.*?)^```$", PAGE.read_text(), flags=re.M | re.S)
    # Nothing is changed but the ports, which may be in use here.
    for port, free in zip(("9092", "9093"), free_ports(2), strict=True):
        commands = commands.replace(port, str(free))
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    began = time.monotonic()
    with subprocess.Popen(
        ["bash", "-eu"],
        cwd=tmp_path,
        env={**os.environ, "PATH": path, "OMP_NUM_THREADS": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as shell:
        try:
            said, _ = shell.communicate(commands, timeout=600)
        finally:
            # Whatever is left of it is in its own session.
            if shell.poll() is None:
                os.killpg(shell.pid, signal.SIGKILL)
    taken = time.monotonic() - began
    assert shell.returncode == 0, said
    assert "3 of 3 rounds done" in said
    assert "node 'node1'" in said
    assert taken < 600, f"{taken:.0f} s"
    assert settle(tmp_path, within=30) == {}
