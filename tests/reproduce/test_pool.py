import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from gdpfed.errors import InputError
from gdpfed_reproduce.pool import run_orders
from tests.reproduce import orders

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parents[2]


def is_alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_reports_and_results() -> None:
    messages = list(run_orders([(orders.double, (number,)) for number in range(5)], num_processes=2))
    assert {message.place: message.content for message in messages if message.is_last} == {n: 2 * n for n in range(5)}
    assert {message.content for message in messages if not message.is_last} == {f"doubling {n}" for n in range(5)}
    assert list(run_orders([], num_processes=2)) == []


@pytest.mark.parametrize(
    ("order", "error", "named"),
    [
        ((orders.refuse, (3,)), InputError, "expected another number, got 3"),
        ((orders.break_down, ()), RuntimeError, "ZeroDivisionError: a defect"),
        ((orders.vanish, ()), InputError, "ended by itself"),
    ],
)
def test_errors_come_back(order: object, error: type[Exception], named: str, tmp_path: Path) -> None:
    begun = time.monotonic()
    with pytest.raises(error, match=named):
        list(run_orders([order, (orders.sleep, (tmp_path,))], num_processes=2))  # type: ignore[list-item]
    assert time.monotonic() - begun < 60
    assert not any(is_alive(int(child.name)) for child in tmp_path.iterdir())


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_processes_end_with_their_parent(end: signal.Signals, tmp_path: Path) -> None:
    script = f"from tests.reproduce.orders import parent; import pathlib; parent(pathlib.Path({str(tmp_path)!r}))"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    running = subprocess.Popen(
        [sys.executable, "-c", script], cwd=ROOT, env=environment, stderr=subprocess.DEVNULL, start_new_session=True
    )
    deadline = time.monotonic() + 60
    while len(list(tmp_path.iterdir())) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    children = [int(child.name) for child in tmp_path.iterdir()]
    assert len(children) == 2
    assert all(is_alive(child) for child in children)
    if end == signal.SIGINT:
        # From a keyboard it reaches every process at once.
        os.killpg(running.pid, end)
    else:
        running.send_signal(end)
    running.wait(timeout=30)
    deadline = time.monotonic() + 10
    while any(is_alive(child) for child in children) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(is_alive(child) for child in children)


def test_one_process_is_held(tmp_path: Path) -> None:
    """Both report twenty times a second; while others are busy one of them waits, and both end in the end."""

    def counted(name: str) -> int:
        return (tmp_path / name).stat().st_size if (tmp_path / name).is_file() else 0

    looks: list[tuple[int, int]] = []

    def gives_way() -> bool:
        looks.append((counted("a"), counted("b")))
        return max(looks[-1]) < 50

    both = [(orders.count, (tmp_path, name, 60)) for name in ("a", "b")]
    messages = list(run_orders(both, num_processes=2, gives_way=gives_way, look_every=0.1))
    assert sum(message.is_last for message in messages) == 2
    assert (counted("a"), counted("b")) == (60, 60)
    # As soon as both worked one of them was held: it stood still while the other went on.
    together = [look for look in looks if min(look) >= 1 and max(look) < 50]
    (first_a, first_b), (last_a, last_b) = together[0], together[-1]
    moved = sorted((last_a - first_a, last_b - first_b))
    assert moved[0] <= 2, looks
    assert moved[1] >= 10, looks


QUIET = """
import sys
from pathlib import Path
from gdpfed_reproduce.pool import run_orders
from tests.reproduce import orders
if __name__ == "__main__":
    both = [(orders.count, (Path(sys.argv[1]), name, 200)) for name in ("a", "b")]
    for message in run_orders(both, num_processes=2):
        break
"""


def test_the_end_is_quiet(tmp_path: Path) -> None:
    """A parent that stops listening in the middle of reports."""
    script = tmp_path / "quiet.py"
    script.write_text(QUIET)
    for _ in range(5):
        run = subprocess.run(
            [sys.executable, str(script), str(tmp_path)],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert (run.returncode, run.stderr) == (0, "")


def test_the_last_process_is_never_held(tmp_path: Path) -> None:
    messages = list(
        run_orders([(orders.count, (tmp_path, "a", 20))], num_processes=2, gives_way=lambda: True, look_every=0.1)
    )
    assert sum(message.is_last for message in messages) == 1


def _killed_while_it_waits(folder: Path) -> None:
    """Two processes report; the one that falls behind is held: it is killed and, at that moment, let go on."""
    names, kill = ("a", "b"), threading.Event()
    both = [(orders.tell, (folder, name)) for name in names]
    for _ in run_orders(both, num_processes=2, gives_way=lambda: not kill.is_set(), look_every=0.1):
        done = {name: (folder / name).stat().st_size for name in names if (folder / name).is_file()}
        if len(done) == 2 and max(done.values()) - min(done.values()) > 20 and not kill.is_set():
            kill.set()
            held = min(done, key=lambda name: done[name])
            os.kill(int((folder / f"{held}.pid").read_text()), signal.SIGKILL)


def test_a_held_process_may_die(tmp_path: Path) -> None:
    """Killed while it waits, and let go on at the same moment: an error, not a wait for ever."""
    with pytest.raises(InputError, match="ended by itself"):
        _killed_while_it_waits(tmp_path)
