"""Where a bad input is tried: a folder of real files, guards against what would leave the process, and a clock.

Nothing that is tried here starts a process, listens, or connects: whoever gets so far has accepted its input, and is
stopped by `Started`. Training stops after its first round for the same reason.
"""

import contextlib
import io
import multiprocessing.process
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import urllib3.util.connection
import uvicorn

SECONDS = 10
# Where processes share a machine, an honest input may wait for its turn.
_SECONDS_ON_THE_CLOCK = 240

# A round of a larger population is long, and right.
_SMALL = 200

TASK = """\
title = "Tiny"
budgets = "30@1,30@4"
method = "gdpfed+"
num_rounds = 2
participation = 0.2
local_steps = 1

[training]
dataset = "own:data"
model = "own:model"
batch_size = 2
"""
OWN = """\
import torch

def data(seed, num_clients):
    each = {"x": torch.zeros(4, 3), "y": torch.zeros(4, dtype=torch.int64)}
    return {"clients": [each] * num_clients, "test": each}

def model():
    return torch.nn.Linear(3, 2)

def broken():
    return 1 / 0

def ones(outputs, targets):
    return torch.ones(len(targets))
"""


class Started(BaseException):
    """The input was accepted: it would start a process, listen, connect, or train on."""


class Hangs(BaseException):
    """It takes too long."""


@dataclass(frozen=True)
class Outcome:
    """What came of an input: ``problem`` is empty unless something was wrong."""

    kind: str
    problem: str = ""


@dataclass
class Sandbox:
    """A folder that is as it was before each input."""

    base: Path
    _contents: dict[tuple[Any, ...], bytes] = field(default_factory=dict)

    @property
    def here(self) -> Path:
        """The current folder of whatever is tried."""
        return self.base / "here"

    def build(self, gdpfed: Callable[[list[str]], None]) -> None:
        """Makes real files, by the commands that make them."""
        here = self.here
        (here / "tmp").mkdir(parents=True)
        os.chdir(here)
        names = [f"c{number}" for number in range(60)]
        rows = [f"{name},{1 + number % 2},1e-4" for number, name in enumerate(names)]
        texts = {
            "clients.csv": "\n".join(["client,epsilon,delta", *rows]) + "\n",
            "clients.json": '[{"client": "a", "epsilon": 1, "delta": 1e-4}, {"client": "b", "epsilon": 2}]',
            "linked.csv": "c1,c2\nc3,c4\n",
            "linked.json": '[["c1", "c2"]]',
            "tiny.toml": TASK,
            "own.py": OWN,
            "empty.csv": "",
            "\udcff.csv": "client,epsilon\na,1\n",
        }
        for name, text in texts.items():
            (here / name).write_text(text)
        (here / "binary.csv").write_bytes(bytes(range(256)))
        (here / "empty").mkdir()
        os.mkfifo(here / "fifo")
        (here / "loop").symlink_to("loop")
        for words in (
            "plan clients.csv --rounds 5 --participation 0.2 --out plan.toml --assignment groups.csv",
            "plan 30@1,30@4 --rounds 2 --participation 0.2 --against server --method gdpfed --out rotation.toml",
            "ledger init book.db clients.csv --population people",
            "ledger receipt book.db c1 --out receipt.json",
            "train tiny.toml --workers 1 --out run",
            "report run -o report.html",
            "flower init home --host localhost",
            *(f"flower node {name} --epsilon 3 --delta 1e-4" for name in ("node", "node2", "node3")),
            "flower enrol home node/announcement.json node2/announcement.json",
        ):
            gdpfed(words.split())
        shutil.rmtree(here / "__pycache__", ignore_errors=True)
        shutil.copytree(here / "run", here / "unfinished", ignore=shutil.ignore_patterns("model.safetensors"))
        self._keep()

    def _keep(self) -> None:
        self._before = self.files()

    def files(self) -> dict[str, tuple[int, bytes]]:
        """Everything here: kinds, modes, and contents."""
        found = {}
        for folder, folders, names in os.walk(self.here):
            if "__pycache__" in folders:
                folders.remove("__pycache__")
            for name in (*folders, *names):
                if name.endswith(("-wal", "-shm")):
                    # SQLite's own, beside a database that is damaged.
                    continue
                path = os.path.join(folder, name)
                status = os.lstat(path)
                # Read again only where something has happened to it.
                seen = (path, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
                if seen not in self._contents:
                    self._contents[seen] = self._content(path, status.st_mode)
                found[path[len(str(self.here)) + 1 :]] = (status.st_mode, self._contents[seen])
        return found

    @staticmethod
    def _content(path: str, mode: int) -> bytes:
        if stat.S_ISLNK(mode):
            return os.fsencode(os.readlink(path))
        return Path(path).read_bytes() if stat.S_ISREG(mode) else b""

    def restore(self) -> None:
        """As it was built."""
        for left in self.here.rglob("*-[ws][ah][lm]"):
            left.unlink()
        now = self.files()
        if now == self._before:
            return
        for name in sorted(now.keys() - self._before.keys(), reverse=True):
            path = self.here / name
            path.rmdir() if stat.S_ISDIR(now[name][0]) else path.unlink()
        for name, kept in sorted(self._before.items()):
            if now.get(name) == kept:
                continue
            path, (mode, content) = self.here / name, kept
            self._contents.clear()
            if stat.S_ISDIR(mode):
                path.mkdir(exist_ok=True)
            elif stat.S_ISREG(mode):
                path.unlink(missing_ok=True)
                path.write_bytes(content)
            elif stat.S_ISFIFO(mode):
                os.mkfifo(path)
            elif stat.S_ISLNK(mode):
                path.unlink(missing_ok=True)
                path.symlink_to(os.fsdecode(content))
            if not stat.S_ISLNK(mode):
                path.chmod(stat.S_IMODE(mode))

    def try_words(self, words: list[str]) -> Outcome:
        """A command line, as a process would run it."""
        from gdpfed.cli import main

        before = self.files()
        out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
        err = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="backslashreplace")
        code: Any = None
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                with watched():
                    main(list(words))
            except SystemExit as ended:
                code = ended.code
                with contextlib.suppress(UnicodeEncodeError):
                    out.flush()
            except Started as reason:
                return Outcome(f"started: {reason}")
            except BaseException as error:
                return Outcome("finding", described(error))
        err.flush()
        printed, told = (text.buffer.getvalue().decode() for text in (out, err))  # type: ignore[attr-defined]
        return self._judged(words, code or 0, printed, told, before)

    def _judged(self, words: list[str], code: int, printed: str, told: str, before: dict[str, Any]) -> Outcome:
        if code == 2:
            line = told.removesuffix("\n")
            if words[:1] == ["check"] and not told and "not sound" in printed.replace('"sound": false', "not sound"):
                line = "error: in the table"
            if not line.startswith("error: ") or len(line) < 12 or not line.isprintable():
                return Outcome("finding", f"no message of one printable line: {told!r}")
            if self.files() != before:
                changed = [name for name, kept in self.files().items() if before.get(name) != kept]
                return Outcome(
                    "finding", f"something is left: {changed + sorted(before.keys() - self.files().keys())}; {line}"
                )
            return Outcome("refused")
        if code not in (0, 1 if words[:1] == ["audit"] else 0):
            return Outcome("finding", f"exit code {code}: {told!r}")
        if code == 0 and "--json" in words and "--help" not in words:
            return _one_document(printed, words)
        return Outcome("accepted")

    def try_call(self, call: Callable[[], Any]) -> Outcome:
        """A call of the library."""
        from gdpfed.errors import GdpfedError

        before = self.files()
        try:
            with watched(), contextlib.redirect_stderr(io.StringIO()):
                call()
        except GdpfedError as error:
            if len(str(error)) < 5:
                return Outcome("finding", f"no message: {error!r}")
            return Outcome("refused") if self.files() == before else Outcome("finding", f"something is left: {error}")
        except Started as reason:
            return Outcome(f"started: {reason}")
        except BaseException as error:
            return Outcome("finding", described(error))
        return Outcome("accepted")


def _one_document(printed: str, words: list[str]) -> Outcome:
    import json

    if not printed and any(word.startswith(("-o", "--out")) for word in words):
        return Outcome("accepted")
    try:
        json.loads(printed)
    except ValueError:
        return Outcome("finding", f"--json, and no single document: {printed[:200]!r}")
    return Outcome("accepted")


def described(error: BaseException) -> str:
    """The error, and the innermost lines of gdpfed that it went through."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [f"{Path(frame.filename).name}:{frame.lineno}" for frame in frames if "gdpfed" in Path(frame.filename).parts]
    last = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]} [{' '.join(ours[-3:])}; {last}]"


@contextlib.contextmanager
def watched() -> Iterator[None]:
    """Raises where an input takes too long, or would leave the process."""

    def late(*_: object) -> None:
        raise Hangs(f"more than {SECONDS} s")

    def stop(reason: str) -> Any:
        def stopped(*_: object, **__: object) -> Any:
            raise Started(reason)

        return stopped

    from gdpfed.runs import loop

    rounds = 0
    real_round = loop.run_round

    def one_round(*given: Any, **named: Any) -> Any:
        nonlocal rounds
        rounds += 1
        if rounds > 1 or named["plan"].num_clients > _SMALL:
            raise Started("trains")
        return real_round(*given, **named)

    old = [signal.signal(number, late) for number in (signal.SIGPROF, signal.SIGALRM)]
    with contextlib.ExitStack() as stack:
        patches: list[tuple[Any, str, Any]] = [
            (subprocess.Popen, "__init__", stop("a process")),
            (os, "fork", stop("a process")),
            (os, "execv", stop("a process")),
            (os, "system", stop("a process")),
            (multiprocessing.process.BaseProcess, "start", stop("a process")),
            (socket.socket, "bind", stop("listens")),
            (socket.socket, "connect", stop("connects")),
            (socket, "getaddrinfo", stop("connects")),
            (loop, "run_round", one_round),
            # It tries a socket when it is imported, by whomever.
            (urllib3.util.connection, "HAS_IPV6", False),
            # It sets up logging for a process of its own, and closes what this one writes to.
            (uvicorn, "run", stop("listens")),
            (tempfile, "tempdir", str(Path("tmp").absolute())),
        ]
        for patch in patches:
            stack.enter_context(mock.patch.object(*patch))
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("always")
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        signal.setitimer(signal.ITIMER_REAL, _SECONDS_ON_THE_CLOCK)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.setitimer(signal.ITIMER_REAL, 0)
            for number, handler in zip((signal.SIGPROF, signal.SIGALRM), old, strict=True):
                signal.signal(number, handler)
            sys.path[:] = [folder for folder in sys.path if folder != os.getcwd()]
            sys.modules.pop("own", None)
