"""A SuperNode whose programs are forks of one warm process, instead of a new Python for each message.

    gdpfed-supernode OPTIONS      # those of flower-supernode

Place: on a client's machine, in place of ``flower-supernode``. Flower's SuperNode starts a SuperExec, and that a
ClientApp for each message, each by ``subprocess.Popen`` of a program's name. Here the warm process has imported all
three, and gdpfed; asked for one of them, it forks, and the child runs the program's own main function. A message's
child ends with it, as before. It leans on how Flower works inside (`shared/leaning.py`, and a test for each assumption
in tests/flower/test_warm.py). Where one does not hold, Flower's own programs are started as they are.

Several nodes may run on one machine: unless told otherwise, each takes a port of loopback that is free.

The warm process reads no message, no key and no token: it passes on a pipe that only the child reads. It learns the
names of the installed packages that an app imports, and imports them for the next child; the names are told before the
message is looked at, so they say nothing of what a node does with it. Python's and numpy's generators, and torch's, get
fresh seeds in each child; whatever counts for privacy comes from the operating system anyway. An app that means harm
can do whatever its account may, to later messages too, here as with Flower's own programs.

Guarantees (tests of the same name):
  nothing_of_a_message_is_kept     a child begins as all others did, but for packages that were imported since.
  children_draw_fresh_numbers      no two children share the state of a generator.
  a_killed_child_is_a_dropout      the SuperNode and the next message's child are not affected.
  nothing_outlives_the_supernode   when the SuperNode ends, or the warm process, by whatever way, nothing is left.
  looks_are_at_fixed_moments       how busy a ClientApp keeps the machine moves none of them.
  another_flower_runs_as_it_is     with a line in the log that says what was expected.
  nodes_of_one_machine_take_free_ports   unless their options say which.
"""

import contextlib
import ctypes
import functools
import gc
import importlib
import json
import math
import os
import select
import signal
import socket
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from gdpfed.errors import InputError
from gdpfed.flower.shared.leaning import (
    CLIENTAPP,
    LOOPS,
    PROGRAMS,
    SUPEREXEC,
    SUPERNODE,
    TAKING,
    ask_again_soon,
    check_programs,
)
from gdpfed.secure.primitives import KEY_BYTES, AgreementKey

__all__ = [
    "CLIENTAPP", "LOOPS", "PROGRAMS", "SUPEREXEC", "SUPERNODE", "Program", "loaded_programs", "main", "serve",
    "tell_imports", "with_free_port",
]  # fmt: skip

Program = Callable[[], object]

# What a node's answers need; scipy comes with the accountant.
_OWN = ("gdpfed.flower.apps", "gdpfed.privacy.pld")
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)
_GRACE_SECONDS = 8.0
_SHORTEST_SECONDS, _SHORTEST_WAIT = 0.2, 0.03
# What a SuperNode sleeps between two looks for its ClientApp's answer; here after five seconds.
_WAITS_FOR_ANSWER, _STEADY = 0.5, 5.0
_LARGEST_NOTE = 1 << 20
_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15
# In a child for a message: how it reaches the warm process, and what was imported when it was forked.
_asks: socket.socket | None = None
_known: frozenset[str] = frozenset()


def main() -> None:
    """As ``flower-supernode``, with its options."""
    os.environ["PATH"] = sysconfig.get_path("scripts") + os.pathsep + os.environ.get("PATH", os.defpath)
    options = with_free_port(sys.argv[1:])
    try:
        programs = loaded_programs()
    except InputError as error:
        print(f"gdpfed: a new process for each message: {error}", file=sys.stderr, flush=True)  # noqa: T201
        os.execvp(SUPERNODE, [SUPERNODE, *options])  # noqa: S606 - Flower's own
    serve(programs, options)


def with_free_port(options: Sequence[str]) -> list[str]:
    """The options, with a port of loopback if none is stated: two nodes of a machine would both take 9094.

    Where others connect to that port (``--isolation process``), or no SuperNode is started, nothing is added.
    """
    stated = {option.partition("=")[0] for option in options}
    if stated & {"--port", "--host", "--isolation", "--help", "-h", "--version"}:
        return list(options)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return [*options, "--host", "127.0.0.1", "--port", str(listening.getsockname()[1])]


def loaded_programs() -> dict[str, Program]:
    """The main functions of Flower's programs, imported as gdpfed is; an InputError says which assumption broke."""
    if sys.platform != "linux":
        raise InputError(f"expected Linux, got {sys.platform}")
    check_programs()
    scripts = {entry.name: entry for entry in metadata.distribution("flwr").entry_points}
    loaded: dict[str, Program] = {name: scripts[name].load() for name in PROGRAMS}
    for module in _OWN:
        importlib.import_module(module)
    # What the first key imports.
    AgreementKey(bytes(KEY_BYTES))
    ask_again_soon()
    if not hasattr(os, "eventfd"):
        raise InputError("expected a Python with os.eventfd, found none")
    if not _is_forkable():
        raise InputError("expected that imports start no thread, found one: a fork would not be safe")
    return loaded


def _is_forkable() -> bool:
    """Whether this process has one thread only when it forks: OpenBLAS ends its own before a fork."""
    if not (child := os.fork()):
        os._exit(0)
    os.waitpid(child, 0)
    return len(os.listdir("/proc/self/task")) == 1


def serve(programs: Mapping[str, Program], options: Sequence[str]) -> NoReturn:
    """Runs the SuperNode with these options, and forks what it asks for; ends with it, with its exit code."""
    gc.freeze()
    _WarmProcess(programs).become(options)()
    sys.exit(0)


class _WarmProcess:
    """Forks, waits and imports. In a child, methods return what the child is to do; in the parent, None."""

    def __init__(self, programs: Mapping[str, Program]) -> None:
        self._programs = programs
        self._children: dict[int, str] = {}
        self._tried: set[str] = set()
        self._hears, self._asks = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # By which a SuperNode says to its SuperExec that there is work.
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._signals, wake = os.pipe()
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake)
        for number in (*_SIGNALS, signal.SIGCHLD):
            signal.signal(number, lambda *_: None)

    def become(self, options: Sequence[str]) -> Program:
        """Returns in children only."""
        body = self._start(SUPERNODE, _pipe_with(options))
        while body is None:
            ready, _, _ = select.select([self._hears.fileno(), self._signals], [], [])
            if self._signals in ready:
                self._heard(os.read(self._signals, 64))
            if self._hears.fileno() in ready:
                note, pipes, _, _ = socket.recv_fds(self._hears, _LARGEST_NOTE, 1)
                names = note.decode().split()
                body = self._start(names[0], pipes[0]) if pipes else self._try(names)
        return body

    def _start(self, name: str, arguments: int) -> Program | None:
        body = self._forked(
            name, functools.partial(_run, name, self._programs[name], arguments, self._asks, self._wake)
        )
        if body is None:
            os.close(arguments)
        return body

    def _try(self, names: list[str]) -> Program | None:
        """Imports in a child first: not what starts a thread, or fails."""
        new = [name for name in names if name not in self._tried]
        self._tried.update(new)
        return self._forked(" ".join(["import", *new]), functools.partial(_import_on_trial, new)) if new else None

    def _forked(self, name: str, body: Program) -> Program | None:
        parent = os.getpid()
        if child := os.fork():
            self._children[child] = name
            return None
        signal.set_wakeup_fd(-1)
        # Flower's handlers put back what was there before them: a second signal must not cut a goodbye short.
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        system = ctypes.CDLL(None, use_errno=True)
        system.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        system.prctl(_PR_SET_NAME, name.encode(), 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)
        # Ctrl-C in a terminal reaches the warm process, which passes it on once.
        os.setpgid(0, 0)
        self._hears.close()
        np.random.seed()  # noqa: NPY002 - the state that an app's old calls use
        if torch := sys.modules.get("torch"):
            torch.seed()
        return body

    def _heard(self, numbers: bytes) -> None:
        if set(numbers) & set(_SIGNALS):
            self._end(None)
        while self._children:
            child, status = os.waitpid(-1, os.WNOHANG)
            if not child:
                return
            name = self._children.pop(child, "")
            if name in LOOPS:
                self._end(os.waitstatus_to_exitcode(status))
            if name not in PROGRAMS and not status:
                _import(name.split()[1:])

    def _end(self, code: int | None) -> NoReturn:
        """Ends all children, gently first; ``code`` is that of the one that ended already."""
        deadline = time.monotonic() + _GRACE_SECONDS
        # Those that it started end with the SuperNode, as they do without us.
        for child in [child for child, name in self._children.items() if code is not None or name == SUPERNODE]:
            os.kill(child, signal.SIGTERM)
        while self._children:
            child, status = os.waitpid(-1, os.WNOHANG)
            if child and self._children.pop(child, "") == SUPERNODE and code is None:
                code = os.waitstatus_to_exitcode(status)
                self._end(code)
            if time.monotonic() > deadline:
                for left in self._children:
                    os.kill(left, signal.SIGKILL)
            time.sleep(0 if child else 0.02)
        code = code or 0
        sys.exit(code if code >= 0 else 128 - code)


def _pipe_with(arguments: Sequence[str]) -> int:
    """An end to read from: what is in it never comes into the warm process's memory."""
    read, write = os.pipe()
    with os.fdopen(write, "w") as pipe:
        json.dump(list(arguments), pipe)
    return read


def _run(name: str, program: Program, arguments: int, asks: socket.socket, wake: int) -> NoReturn:
    """One of Flower's programs, in a child."""
    global _asks, _known
    with os.fdopen(arguments) as pipe:
        sys.argv = [name, *json.load(pipe)]
    if name in LOOPS:
        clock = _Clock(wake, is_woken=name == SUPEREXEC)
        subprocess.Popen = _forking(asks, clock)  # type: ignore[misc]
        with contextlib.suppress(ImportError):
            _hurry(importlib.import_module(LOOPS[name]), clock)
    else:
        os.close(wake)
        _asks, _known = asks, frozenset(sys.modules)
    code = 0
    try:
        program()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    sys.stdout.flush()
    sys.stderr.flush()
    # At once, as children of multiprocessing do: to take apart all that was imported costs more than most messages.
    os._exit(code)


def _hurry(loop: Any, clock: "_Clock") -> None:
    """Lets one of Flower's loops sleep by this clock; a SuperNode's clock hears of every message."""
    loop.time = clock
    taking = getattr(loop, TAKING, None)
    if taking is None:
        return

    def taken(*arguments: Any, **options: Any) -> Any:
        run = taking(*arguments, **options)
        if run is not None:
            clock.took()
        return run

    setattr(loop, TAKING, taken)


def _forking(asks: socket.socket, clock: "_Clock") -> type[Any]:
    """A Popen that asks the warm process for Flower's programs, and starts all others."""

    class Forking(subprocess.Popen[Any]):
        def __new__(cls, args: Any, *rest: Any, **options: Any) -> Any:
            # With options that a fork would not follow, a process is started as Flower asks.
            if rest or options or not isinstance(args, list) or args[0] not in PROGRAMS:
                return super().__new__(cls)
            clock.work()
            pipe = _pipe_with(args[1:])
            socket.send_fds(asks, [args[0].encode()], [pipe])
            os.close(pipe)
            return None

    return Forking


class _Clock:
    """The module ``time`` for Flower's loops: after work they look for more at once, and then ever less often.

    A SuperNode looks every three seconds for a message, and every half second for its ClientApp's answer; a SuperExec
    every second for work. In a round of four exchanges most of the time would pass with that. Here the SuperNode wakes
    the SuperExec when it has taken a message, and looks for the answer, which is in its own memory, at fixed moments
    after that: each a tenth later than the one before. The moments are not counted from look to look: a look that comes
    late, as it may while the ClientApp trains, moves no other. Messages are looked for every third of the time since
    the last.
    """

    def __init__(self, wake: int, *, is_woken: bool) -> None:
        self._wake, self._is_woken = wake, is_woken
        self._worked = self._taken = time.monotonic()

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)

    def work(self) -> None:
        """There was some."""
        self._worked = time.monotonic()

    def took(self) -> None:
        """The SuperNode has a message: its SuperExec is to know."""
        self._taken = time.monotonic()
        os.eventfd_write(self._wake, 1)

    def sleep(self, seconds: float) -> None:
        """So long at most."""
        now = time.monotonic()
        seldom = min(seconds, max(_SHORTEST_SECONDS, (now - self._worked) / 3))
        if self._is_woken:
            if select.select([self._wake], [], [], seldom)[0]:
                os.eventfd_read(self._wake)
                self.work()
        elif seconds == _WAITS_FOR_ANSWER:
            time.sleep(next_look(now - self._taken) - (now - self._taken))
            self.work()
        else:
            time.sleep(seldom)


def next_look(waited: float) -> float:
    """Of the fixed moments at which an answer is looked for the first that is still to come."""
    due = 0.0
    while due <= waited:
        due += min(_WAITS_FOR_ANSWER, max(_SHORTEST_WAIT, due / 10))
        if due >= _STEADY:
            # A hair's breadth before a moment counts as after it: no look without a sleep.
            return due + _WAITS_FOR_ANSWER * max(0, math.floor((waited - due) / _WAITS_FOR_ANSWER + 1e-6) + 1)
    return due


def tell_imports() -> None:
    """In a child, before it looks at its message: the installed packages that the app imported, for those to come."""
    if _asks is None:
        return
    installed = str(Path(sysconfig.get_path("purelib")))
    files = {name: getattr(sys.modules[name], "__file__", None) or "" for name in sys.modules.keys() - _known}
    new = sorted(name for name, file in files.items() if file.startswith(installed))
    # Where it cannot be told, the next child imports again: that takes longer, and no more.
    if new:
        with contextlib.suppress(OSError):
            _asks.send(" ".join(new).encode())


def _import(names: Sequence[str]) -> None:
    for name in names:
        with contextlib.suppress(Exception):
            importlib.import_module(name)


def _import_on_trial(names: Sequence[str]) -> NoReturn:
    _import(names)
    os._exit(0 if _is_forkable() else 1)
