"""A SuperLink and its SuperNodes as processes of this machine, on loopback, with TLS and node authentication.

Place: operations, over certificates.py and keeper.py; up.py, the tests and the benchmark use it. Flower's programs and
their documented options are used; its SuperNodes are started warm (node/warm.py), unless told otherwise.

Guarantees (tests of the same name):
  nothing_is_left_behind     leaving the ``with`` block, by whatever way, leaves no process and no open port.
  only_loopback_is_used      every address that a process listens on is 127.0.0.1.
  an_unknown_key_is_refused  a SuperNode whose key was not registered gets no message.
"""

import contextlib
import importlib.util
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

from gdpfed.errors import GdpfedError, InputError, MissingExtraError
from gdpfed.flower.operate import keeper
from gdpfed.flower.operate.certificates import make_certificates
from gdpfed.flower.shared.leaning import ONLINE_WORDS, POLL_VARIABLE, SUPERLINK

__all__ = ["KeptProcess", "LocalFlower", "environment", "free_ports", "need_flower"]

LOOPBACK = "127.0.0.1"
_CONNECTION = "deployment"
_START_SECONDS = 90.0
_COMMAND_SECONDS = 90.0
_STOP_SECONDS = 15.0


def need_flower() -> None:
    """Raises unless Flower's programs are installed beside this Python."""
    if sys.platform != "linux":
        raise InputError(
            f"expected Linux, got {sys.platform}: only there it is sure that no process is left; start Flower's "
            f"programs yourself, as gdpfed flower init and node print them"
        )
    if importlib.util.find_spec("flwr") is None:
        raise MissingExtraError(package="flwr", extra="flower", purpose="deployment")
    _program(SUPERLINK)


def _program(name: str) -> str:
    program = shutil.which(name, path=environment(Path())["PATH"])
    if program is None:
        raise InputError(f"expected {name} beside {sys.executable}, found none: pip install 'gdpfed[flower]' there")
    return program


def environment(flower_home: Path) -> dict[str, str]:
    """The environment of every Flower process: nothing is fetched or reported, and our Python comes first."""
    scripts = str(Path(sys.executable).absolute().parent)
    return {
        "OMP_NUM_THREADS": "1",
        **os.environ,
        "PATH": scripts + os.pathsep + os.environ.get("PATH", os.defpath),
        "FLWR_HOME": str(flower_home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        # In seconds: 1 by default. The variable is documented by its error message.
        POLL_VARIABLE: "0.4",
        "PYTHONUNBUFFERED": "1",
    }


def free_ports(count: int) -> list[int]:
    """Ports of loopback that nothing listens on now."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server((LOOPBACK, 0))) for _ in range(count)]
        return [listening.getsockname()[1] for listening in sockets]


@dataclass(frozen=True, kw_only=True)
class KeptProcess:
    """One of Flower's long-lived processes, under a keeper that ends whatever it started."""

    keeper: subprocess.Popen[bytes]
    log: Path

    @property
    def is_alive(self) -> bool:
        """Whether it still runs."""
        return self.keeper.poll() is None

    def find(self, program: str) -> list[int]:
        """The processes of this one that run ``program``, for example ``flwr-clientapp``."""
        running = []
        for process in keeper.descendants(self.keeper.pid):
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{process}/cmdline").read_text(errors="replace").split("\0")
                # A fork has its parent's words, and a name of its own, of at most 15 letters; what has ended, no words.
                name = Path(f"/proc/{process}/comm").read_text().strip() if words[0] else ""
                if name == program[:15] or any(Path(word).name == program for word in words[:3]):
                    running.append(process)
        return running

    def tell(self) -> None:
        """Asks it to end; returns at once."""
        if self.keeper.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self.keeper.stdin.close()

    def wait(self) -> None:
        """Waits until it and all it started have ended."""
        try:
            self.keeper.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            for process in [*keeper.descendants(self.keeper.pid), self.keeper.pid]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, 9)
            self.keeper.wait(_STOP_SECONDS)

    @property
    def said(self) -> str:
        """All of its log."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    @property
    def complaint(self) -> str:
        """Where its log is, and the end of it: for an error message."""
        return f"see {self.log}: {_last_lines(self.said, 5)}"


def _last_lines(text: str, count: int) -> str:
    return " | ".join(line.strip() for line in text.splitlines()[-count:] if line.strip())


class LocalFlower(contextlib.AbstractContextManager["LocalFlower"]):
    """A SuperLink and SuperNodes in ``folder``; a context manager that takes everything down again.

    ``keeps_state``: the SuperLink writes its own to the disk, and can be started again. Flower's default is memory,
    which is faster: on the disk its threads wait for the locks of SQLite.
    """

    def __init__(self, folder: Path, *, is_warm: bool = True, keeps_state: bool = False) -> None:
        need_flower()
        self.is_warm, self.keeps_state = is_warm, keeps_state
        self.folder = folder.absolute()
        self.logs = self.folder / "logs"
        self.certificates = self.folder / "certificates"
        self.flower_home = self.folder / "flower"
        self.environment = environment(self.flower_home)
        self.superlink: KeptProcess | None = None
        self.gate: KeptProcess | None = None
        self.nodes: dict[str, KeptProcess] = {}
        for path in (self.folder, self.logs, self.flower_home):
            path.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not (self.certificates / "server.crt").exists():
            make_certificates(self.certificates, hosts=[LOOPBACK, "localhost"])
        self.port, self.gate_port = free_ports(2)
        self.address = f"{LOOPBACK}:{self.port}"

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start_superlink(self) -> None:
        """Starts the SuperLink (again, if it keeps its state), and waits until it answers."""
        folder = self.certificates
        if self.superlink is not None and not self.keeps_state:
            raise InputError("expected a SuperLink that keeps its state, to be started again: keeps_state")
        state = str(self.folder / "superlink.db") if self.keeps_state else ":flwr-in-memory:"
        command = [
            SUPERLINK, "--host", LOOPBACK, "--port", str(self.port),
            "--ssl-ca-certfile", str(folder / "ca.crt"), "--ssl-certfile", str(folder / "server.crt"),
            "--ssl-keyfile", str(folder / "server.key"), "--enable-supernode-auth",
            "--database", state, "--disable-runtime-dependency-installation",
        ]  # fmt: skip
        connection = {"address": self.address, "root-certificates": str(folder / "ca.crt")}
        connections = {"superlink": {"default": _CONNECTION, _CONNECTION: connection}}
        (self.flower_home / "config.toml").write_text(tomli_w.dumps(connections))
        self.superlink = self._start("superlink", command)
        self._await_port(self.superlink, self.port)

    def start_gate(self) -> None:
        """Starts a gate before the SuperLink; nodes that are started later come through it."""
        serve = "import sys; from pathlib import Path; from gdpfed.flower.operate.gate import serve_gate; "
        serve += (
            "serve_gate(Path(sys.argv[1]), listen=sys.argv[2], superlink=sys.argv[3], access_log=Path(sys.argv[4]))"
        )
        words = [str(self.certificates), f"{LOOPBACK}:{self.gate_port}", self.address, str(self.logs / "access.log")]
        self.gate = self._start("gate", [sys.executable, "-c", serve, *words])
        self._await_port(self.gate, self.gate_port)

    def register(self, public_keys: list[Path]) -> None:
        """Registers the nodes' public keys."""
        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            list(pool.map(lambda key: self.flwr("supernode", "register", str(key), _CONNECTION), public_keys))

    def start_node(self, name: str, *, key: Path, config: Mapping[str, object]) -> None:
        """Starts a SuperNode; its ClientApps get ``config`` as the node's configuration."""
        door = self.address if self.gate is None else f"{LOOPBACK}:{self.gate_port}"
        program = [sys.executable, "-P", "-c", "from gdpfed.flower.node.warm import main; main()"]
        command = [
            *(program if self.is_warm else ["flower-supernode"]), "--superlink", door,
            "--root-certificates", str(self.certificates / "ca.crt"),
            "--auth-supernode-private-key", str(key), "--host", LOOPBACK, "--port", str(free_ports(1)[0]),
            "--node-config", _pairs(config),
        ]  # fmt: skip
        self.nodes[name] = self._start(name, command)

    def await_connected(self, names: Sequence[str]) -> None:
        """Waits until these nodes were admitted by the SuperLink, by the word of their logs."""
        deadline = time.monotonic() + _START_SECONDS
        waiting = list(names)
        while waiting := [name for name in waiting if ONLINE_WORDS not in self.nodes[name].said]:
            for name in waiting:
                if not self.nodes[name].is_alive:
                    raise GdpfedError(f"{name} ended before it was online; {self.nodes[name].complaint}")
            if time.monotonic() > deadline:
                raise GdpfedError(f"expected all nodes online, got none of {', '.join(waiting)}: see {self.logs}")
            time.sleep(0.2)

    def submit(self, app: Path, config: Mapping[str, object]) -> int:
        """Submits a run of the Flower app in ``app`` with this run configuration; returns its run id."""
        return int(self.flwr("run", str(app), _CONNECTION, "--run-config", _pairs(config))["run-id"])

    def status(self, run: int) -> str:
        """Flower's word for the state of a run, for example ``running`` or ``finished:completed``."""
        return str(self.flwr("list", _CONNECTION, "--run-id", str(run))["runs"][0]["status"])

    def log_of(self, run: int) -> str:
        """The end of what a run's ServerApp printed, for an error message."""
        return _last_lines(self._called("log", str(run), _CONNECTION, "--show").stdout, 6)

    def flwr(self, *words: str) -> dict[str, Any]:
        """Calls ``flwr`` and returns its JSON answer."""
        done = self._called(*words, "--format", "json")
        start = done.stdout.find("{")
        with contextlib.suppress(json.JSONDecodeError):
            answer = json.JSONDecoder().raw_decode(done.stdout[start:])[0] if start >= 0 else {}
            if isinstance(answer, dict) and answer.get("success") and done.returncode == 0:
                return answer
        said = (done.stdout + done.stderr)[-600:]
        raise GdpfedError(f"flwr {' '.join(words[:2])} failed with code {done.returncode}: {said}")

    def _called(self, *words: str) -> subprocess.CompletedProcess[str]:
        try:
            return subprocess.run(  # noqa: S603 - Flower's own command
                [_program("flwr"), *words],
                env=self.environment,
                cwd=self.folder,
                capture_output=True,
                text=True,
                timeout=_COMMAND_SECONDS,
                stdin=subprocess.DEVNULL,
                check=False,
            )
        except subprocess.TimeoutExpired:
            asked = " ".join(words[:2])
            raise GdpfedError(f"flwr {asked} took {_COMMAND_SECONDS:g} s: is the machine too busy?") from None

    def stop(self) -> None:
        """Takes everything down: the nodes first, so that they can say goodbye to the SuperLink."""
        for node in self.nodes.values():
            node.tell()
        for node in self.nodes.values():
            node.wait()
        for last in (self.gate, self.superlink):
            if last is not None:
                last.tell()
                last.wait()

    def _start(self, name: str, command: list[str]) -> KeptProcess:
        log = self.logs / f"{name}.log"
        process = subprocess.Popen(  # noqa: S603 - Flower's own commands
            [sys.executable, "-I", "-S", keeper.__file__, str(log), _program(command[0]), *command[1:]],
            env=self.environment,
            cwd=self.folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C reaches us only, and we take them down in order
        )
        return KeptProcess(keeper=process, log=log)

    def _await_port(self, kept: KeptProcess, port: int) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while True:
            with contextlib.suppress(OSError), socket.create_connection((LOOPBACK, port), timeout=1.0):
                return
            if not kept.is_alive or time.monotonic() > deadline:
                raise GdpfedError(f"the {kept.log.stem} did not start; {kept.complaint}")
            time.sleep(0.1)


def _pairs(config: Mapping[str, object]) -> str:
    """As Flower's commands take them: pairs of TOML, separated by spaces."""
    return " ".join(f"{name}={json.dumps(value, default=str)}" for name, value in config.items())
