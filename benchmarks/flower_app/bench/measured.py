"""What is measured in a ServerApp and in a ClientApp, in the same way for all contestants."""

import contextlib
import json
import os
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.run import Run

__all__ = ["MeasuredClientApp", "MeasuredGrid", "process_started"]


def process_started() -> float:
    """When this process was started, in seconds since 1970."""
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    # Not the btime of /proc/stat: that is a whole number of seconds.
    booted = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    return booted + ticks / os.sysconf("SC_CLK_TCK")


def _size(message: Message) -> int:
    """Bytes of a message as Flower stores and sends it."""
    if not message.has_content():
        return 0
    return sum(len(part.deflate()) for part in get_all_nested_objects(message).values())


class MeasuredGrid(Grid):
    """Passes everything on, and writes a line for each exchange: when, how many bytes each way, and the app's own time.

    The app's own time on the server is what passes between its calls to the grid: all of it while no answer is awaited,
    and the calling thread's processor time while some are (the rest is sleep). What measuring costs is taken out.
    """

    def __init__(self, inner: Grid, path: str) -> None:
        self._inner, self._path = inner, Path(path)
        self._open: dict[str, Any] = {}
        self._waiting: set[str] = set()
        self._own, self._measuring = 0.0, 0.0
        self._left = (time.time(), time.thread_time())
        # Flower's older API also looks for nodes in a thread of its own.
        self._thread = threading.get_ident()

    @contextlib.contextmanager
    def _inside(self) -> Iterator[None]:
        if threading.get_ident() != self._thread:
            yield
            return
        wall, cpu = (now - before for now, before in zip((time.time(), time.thread_time()), self._left, strict=True))
        self._own += cpu if self._waiting else wall
        try:
            yield
        finally:
            self._left = (time.time(), time.thread_time())

    def _sizes(self, messages: Iterable[Message]) -> int:
        began = time.time()
        found = sum(map(_size, messages))
        self._measuring += time.time() - began
        return found

    def set_run(self, run: Run) -> None:
        """Passed on."""
        self._inner.set_run(run)

    @property
    def run(self) -> Run:
        """Passed on."""
        return self._inner.run

    def create_message(self, *arguments: Any, **named: Any) -> Message:
        """Passed on."""
        return self._inner.create_message(*arguments, **named)

    def get_node_ids(self) -> Iterable[int]:
        """Passed on."""
        with self._inside():
            return self._inner.get_node_ids()

    def get_nodes(self) -> Iterable[Any]:
        """Passed on."""
        with self._inside():
            return self._inner.get_nodes()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """The begin of an exchange."""
        sent = list(messages)
        with self._inside():
            self._begin(sent)
            numbers = list(self._inner.push_messages(sent))
            self._waiting = set(numbers)
            return numbers

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """The end of an exchange, when the last one has come."""
        with self._inside():
            found = list(self._inner.pull_messages(message_ids))
            self._open["up"] += self._sizes(found)
            for reply in found:
                self._waiting.discard(reply.metadata.reply_to_message_id)
            if found and not self._waiting:
                self._write(self._open)
            return found

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """A whole exchange."""
        sent = list(messages)
        with self._inside():
            self._begin(sent)
            found = list(self._inner.send_and_receive(sent, timeout=timeout))
            self._open["up"] += self._sizes(found)
            if sent:
                self._write(self._open)
            return found

    def finish(self) -> None:
        """After the last round."""
        with self._inside():
            self._begin([])
            self._write(self._open)

    def _begin(self, sent: list[Message]) -> None:
        kind = sent[0].metadata.message_type if sent else "finish"
        start = time.time()
        down = self._sizes(sent)
        facts = {"kind": kind, "start": start, "own_before": self._own, "measuring_before": self._measuring}
        self._open = {**facts, "down": down, "up": 0, "messages": len(sent)}

    def _write(self, facts: dict[str, Any]) -> None:
        with self._path.open("a") as file:
            file.write(json.dumps({**facts, "end": time.time()}) + "\n")


class MeasuredClientApp(ClientApp):
    """Calls another ClientApp, and writes a line for each message: seconds of start, imports and answer."""

    def __init__(self, inner: ClientApp, *, before_imports: tuple[float, float]) -> None:
        super().__init__()
        self._inner = inner
        self._imported = (time.time(), time.process_time())
        self._before = before_imports

    def __call__(self, message: Message, context: Context) -> Message:
        """The answer of the other."""
        began = (time.time(), time.process_time())
        reply = self._inner(message, context)
        ended = (time.time(), time.process_time())
        facts = {
            "kind": message.metadata.message_type,
            "run": context.run_id,
            "end": ended[0],
            "start_seconds": self._before[0] - process_started(),
            "import_seconds": self._imported[0] - self._before[0],
            "answer_seconds": ended[0] - began[0],
            "import_cpu": self._imported[1] - self._before[1],
            "answer_cpu": ended[1] - began[1],
            "total_cpu": ended[1],
        }
        path = Path(str(context.run_config["timings"])) / f"{context.node_id}.jsonl"
        with path.open("a") as file:
            file.write(json.dumps(facts) + "\n")
        return reply
