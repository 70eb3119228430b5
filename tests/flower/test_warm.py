"""The warm process with real forks, and one test for each assumption about Flower that it leans on."""

import importlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gdpfed.errors import InputError
from gdpfed.flower.node import warm
from gdpfed.flower.shared import leaning
from tests.flower.test_keeper import gone

pytest.importorskip("flwr")

# In place of Flower's programs: each writes down what it found. The SuperExec starts clients until it is told to stop.
PROGRAMS = """
import builtins, json, os, random, secrets, signal, subprocess, sys, time
from pathlib import Path
from types import SimpleNamespace
import numpy as np
from gdpfed.flower.node import warm

notes = Path(sys.argv[1])
seeded = []
sys.modules["torch"] = SimpleNamespace(seed=lambda: seeded.append(os.getpid()))

def note(name, **facts):
    draft = notes / (name + ".new")
    draft.write_text(json.dumps(facts | {"pid": os.getpid(), "parent": os.getppid()}))
    draft.rename(notes / name)

def polite():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))

def supernode():
    polite()
    note("supernode", arguments=sys.argv)
    subprocess.Popen(["flower-superexec"])
    while not (notes / "stop").exists():
        time.sleep(0.01)
    sys.exit(7)

def superexec():
    polite()
    secret = secrets.token_hex(16)
    note("superexec", secret=secret)
    for number in range(200):
        subprocess.Popen(["flwr-clientapp", str(number), secret])
        while not (notes / f"client{number}").exists():
            time.sleep(0.01)
        if number >= 2 and (notes / "enough").exists():
            break
    note("done", last=number)
    time.sleep(600)

def clientapp():
    number = int(sys.argv[1])
    found = {name: name in sys.modules for name in ("jinja2", "starts_a_thread")}
    note(
        f"client{number}", found=found, kept=getattr(builtins, "kept", None), arguments=sys.argv[2:],
        drawn=[random.random(), float(np.random.random()), secrets.token_hex(8), *seeded],
    )
    builtins.kept = number
    if number == 0:
        import jinja2
        warm.tell_imports()
        warm._asks.send(b"starts_a_thread")
    if found["jinja2"]:
        (notes / "enough").touch()
    if number == 1:
        os.kill(os.getpid(), signal.SIGKILL)

warm.serve({"flower-supernode": supernode, "flower-superexec": superexec, "flwr-clientapp": clientapp}, ["--an-option"])
"""
THREAD = "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"


class Running:
    """A warm process with those programs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "starts_a_thread.py").write_text(THREAD)
        paths = os.pathsep.join([str(folder), *(path for path in sys.path if path)])
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-c", PROGRAMS, str(folder)], env={**os.environ, "PYTHONPATH": paths}
        )

    def read(self, name: str) -> dict[str, Any]:
        deadline = time.monotonic() + 60
        while not (self.folder / name).exists():
            assert time.monotonic() < deadline, f"no {name}"
            time.sleep(0.02)
        return json.loads((self.folder / name).read_text())

    def clients(self) -> list[dict[str, Any]]:
        return [self.read(f"client{number}") for number in range(self.read("done")["last"] + 1)]

    def stop(self) -> int:
        (self.folder / "stop").touch()
        return self.process.wait(30)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """One for all that only look."""
    made = Running(tmp_path_factory.mktemp("warm"))
    yield made
    assert made.stop() == 7


def holds(process: int, secret: str) -> bool:
    """Whether a secret lies in what a process may write to."""
    with Path(f"/proc/{process}/mem").open("rb", 0) as memory:
        for row in Path(f"/proc/{process}/maps").read_text().splitlines():
            where, rights, *_ = row.split()
            if rights.startswith("rw"):
                start, end = (int(number, 16) for number in where.split("-"))
                memory.seek(start)
                try:
                    if secret.encode() in memory.read(end - start):
                        return True
                except OSError:
                    continue
    return False


@pytest.mark.processes
def test_nothing_of_a_message_is_kept(running: Running) -> None:
    clients = running.clients()
    assert [client["kept"] for client in clients] == [None] * len(clients)
    assert {client["parent"] for client in clients} == {running.process.pid}
    assert len({client["pid"] for client in clients}) == len(clients)
    # Not even the token: only who asks and who is forked have seen it.
    told = running.read("superexec")
    assert {client["arguments"][0] for client in clients} == {told["secret"]}
    assert holds(told["pid"], told["secret"])
    assert not holds(running.process.pid, told["secret"])
    assert running.read("supernode")["arguments"] == ["flower-supernode", "--an-option"]


@pytest.mark.processes
def test_children_draw_fresh_numbers(running: Running) -> None:
    """Python's, numpy's, the system's; and torch is told to take a seed in each, once."""
    drawn = [client["drawn"] for client in running.clients()]
    assert {len(numbers) for numbers in drawn} == {4}
    for numbers in zip(*drawn, strict=True):
        assert len(set(numbers)) == len(drawn)


@pytest.mark.processes
def test_what_an_app_imports_is_imported_once(running: Running) -> None:
    """But nothing that starts a thread: no child would be safe after that."""
    clients = running.clients()
    assert not clients[0]["found"]["jinja2"]
    assert clients[-1]["found"]["jinja2"]
    assert not any(client["found"]["starts_a_thread"] for client in clients)


@pytest.mark.processes
def test_a_killed_child_is_a_dropout(running: Running) -> None:
    """The second client kills itself; those after it run, and so does the SuperNode."""
    assert len(running.clients()) > 2
    assert running.process.poll() is None
    assert not gone(running.read("supernode")["pid"], within=0)


@pytest.mark.processes
@pytest.mark.parametrize(
    ("number", "whom", "code"),
    [(signal.SIGKILL, "supernode", 137), (signal.SIGKILL, "", -signal.SIGKILL), (signal.SIGTERM, "", 0)],
)
def test_nothing_outlives_the_supernode(tmp_path: Path, number: int, whom: str, code: int) -> None:
    running = Running(tmp_path)
    running.read("client2")
    processes = [running.read(name)["pid"] for name in ("supernode", "superexec")]
    os.kill(running.read(whom)["pid"] if whom else running.process.pid, number)
    assert running.process.wait(30) == code
    assert all(gone(process) for process in processes)


def test_another_flower_runs_as_it_is(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr(warm.metadata, "version", lambda _: "1.42.0")
    monkeypatch.setattr(warm.os, "execvp", lambda _, words: started.append(words) or sys.exit(0))
    monkeypatch.setattr(sys, "argv", ["gdpfed-supernode", "--superlink", "x", "--port", "9094"])
    monkeypatch.setenv("PATH", os.environ["PATH"])
    with pytest.raises(SystemExit):
        warm.main()
    assert started == [["flower-supernode", "--superlink", "x", "--port", "9094"]]
    assert "expected flwr 1.41.x, which this was made for, got 1.42.0" in capsys.readouterr().err


def test_nodes_of_one_machine_take_free_ports() -> None:
    one, other = (warm.with_free_port(["--superlink", "x:1"]) for _ in range(2))
    assert one[:5] == ["--superlink", "x:1", "--host", "127.0.0.1", "--port"]
    assert one[5] != other[5]
    for stated in (["--port", "9094"], ["--port=9094"], ["--isolation", "process"], ["--help"]):
        assert warm.with_free_port(stated) == stated


# What is assumed of Flower: the name of the test that fails says what is different now.


@pytest.mark.processes
def test_assumed_a_version_that_is_known_and_no_threads_by_imports() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from gdpfed.flower.node.warm import loaded_programs; print(*loaded_programs())"],
        capture_output=True,
        text=True,
    )
    assert done.stdout.split() == list(warm.PROGRAMS), done.stderr


def test_assumed_that_flower_has_these_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [entry.name for entry in warm.metadata.distribution("flwr").entry_points]
    assert set(warm.PROGRAMS) <= set(found)
    monkeypatch.setattr(leaning, "PROGRAMS", (*warm.PROGRAMS, "flower-other"))
    with pytest.raises(InputError, match="found no flower-other"):
        warm.loaded_programs()


class StopHereError(Exception):
    """In place of what comes after the moment that a test is about."""


@pytest.fixture
def popen(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    calls: list[tuple[Any, ...]] = []
    monkeypatch.setattr(subprocess, "Popen", lambda *words, **options: calls.append((*words, options)))
    return calls


def test_assumed_that_a_superexec_starts_clientapps_by_name(popen: list[tuple[Any, ...]]) -> None:
    from flwr.supercore.constant import TaskType
    from flwr.supercore.superexec.executor.subprocess_executor import SubprocessExecutor
    from flwr.supercore.superexec.plugin import AutoExecPlugin

    plugin = AutoExecPlugin(
        runtime_api_address="127.0.0.1:1", insecure=True, root_certificates_path=None, executor=SubprocessExecutor()
    )
    task = type("Task", (), {"type": TaskType.CLIENT_APP.value, "task_id": 1, "fab_hash": ""})()
    plugin.launch_task(token="abc", task=task)  # noqa: S106 - not a password
    ((words, options),) = popen
    assert words[0] == warm.CLIENTAPP
    assert all(isinstance(word, str) for word in words)
    assert options == {}


def supernode_loop(monkeypatch: pytest.MonkeyPatch, pulled: Any) -> None:
    """Flower's main loop of a SuperNode, without a SuperLink."""
    from contextlib import nullcontext
    from unittest.mock import MagicMock

    module: Any = importlib.import_module(warm.LOOPS[warm.SUPERNODE])
    monkeypatch.setattr(module, "register_signal_handlers", lambda **_: None)
    monkeypatch.setattr(module, "_init_connection", lambda **_: nullcontext([1, *[None] * 7]))
    monkeypatch.setattr(module, "_pull_and_store_message", pulled)
    with pytest.raises(StopHereError):
        module.start_client_internal(
            state_factory=MagicMock(), server_address="127.0.0.1:1", node_config={}, insecure=True,
            runtime_api_address="127.0.0.1:2",
        )  # fmt: skip


def stop(*_: Any, **__: Any) -> None:
    raise StopHereError


def test_assumed_that_a_supernode_starts_a_superexec_by_name(
    monkeypatch: pytest.MonkeyPatch, popen: list[tuple[Any, ...]]
) -> None:
    supernode_loop(monkeypatch, stop)
    ((words, options),) = popen
    assert words[0] == warm.SUPEREXEC
    assert all(isinstance(word, str) for word in words)
    assert options == {}


def test_assumed_that_a_supernode_sleeps_between_two_looks(
    monkeypatch: pytest.MonkeyPatch, popen: list[tuple[Any, ...]]
) -> None:
    slept: list[float] = []
    module: Any = importlib.import_module(warm.LOOPS[warm.SUPERNODE])
    fake = type("Time", (), {"sleep": staticmethod(lambda seconds: (slept.append(seconds), stop()))})
    monkeypatch.setattr(module, "time", fake)
    supernode_loop(monkeypatch, lambda **_: None)
    assert slept == [3]
    # And, as `_Clock` reads it, half a second while it waits for an answer.
    with pytest.raises(StopHereError):
        module._push_messages(type("State", (), {"get_messages_legacy": lambda *_, **__: []})(), None, None, None)
    assert slept == [3, 0.5]


def test_assumed_that_a_superexec_sleeps_by_the_module_time() -> None:
    module: Any = importlib.import_module(warm.LOOPS[warm.SUPEREXEC])
    assert module.time is time


def test_a_loop_looks_again_soon_after_work() -> None:
    clock = warm._Clock(os.eventfd(0, os.EFD_NONBLOCK), is_woken=False)
    began = time.monotonic()
    clock.sleep(0.5)
    clock.sleep(3)
    assert time.monotonic() - began < 2
    clock._worked -= 100
    began = time.monotonic()
    clock.sleep(0.7)
    assert time.monotonic() - began >= 0.7
    assert clock.monotonic() > began


def test_a_supernode_with_a_message_wakes_its_superexec_once() -> None:
    wake = os.eventfd(0, os.EFD_NONBLOCK)
    supernode, superexec = warm._Clock(wake, is_woken=False), warm._Clock(wake, is_woken=True)
    superexec._worked -= 100
    messages = [None, 7]
    loop = type("Loop", (), {warm.TAKING: staticmethod(lambda: messages.pop(0)), "time": time})
    warm._hurry(loop, supernode)
    assert getattr(loop, warm.TAKING)() is None
    with pytest.raises(BlockingIOError):
        os.eventfd_read(wake)
    assert getattr(loop, warm.TAKING)() == 7
    began = time.monotonic()
    superexec.sleep(5)
    assert time.monotonic() - began < 1
    for _ in range(3):
        supernode.sleep(0.5)
    with pytest.raises(BlockingIOError):
        os.eventfd_read(wake)


def test_looks_are_at_fixed_moments() -> None:
    """However late one look is, as it may be while a ClientApp trains, the next is at a moment of the same list."""
    moments, now = [0.0], 0.0
    while now < 60:
        now = warm.next_look(now)
        moments.append(now)
    steps = np.diff(moments)
    assert steps.min() > 0.0299
    assert steps.max() < 0.5001
    assert np.all(steps < np.maximum(0.0301, 0.1001 * np.array(moments[:-1])))
    late = np.random.default_rng(1).uniform(0, 60, size=2000)
    assert {round(warm.next_look(waited), 9) for waited in late.tolist()} <= {round(one, 9) for one in moments}
    assert all(warm.next_look(waited) > waited for waited in late.tolist())


def test_a_content_that_is_not_there_is_asked_for_again_soon() -> None:
    """In processes of the warm one, and of our ServerApp."""
    looks = []

    def pull(_: str) -> bytes:
        looks.append(time.monotonic())
        if len(looks) < 3:
            raise inflatable.ObjectUnavailableError("not yet")
        return b"here"

    inflatable: Any = importlib.import_module(leaning.PULLS)
    before = dict(inflatable.pull_objects.__kwdefaults__)
    try:
        leaning.ask_again_soon()
        assert inflatable.pull_objects(["one"], pull) == {"one": b"here"}
    finally:
        inflatable.pull_objects.__kwdefaults__.update(before)
    assert looks[-1] - looks[0] < 0.5
