"""Processes that compute for the pages, so that these never wait for each other.

Place: between the addresses (`app`) and what takes time (`work`). A job runs in a process of its own and reports while
it computes. Whoever stops listening ends it: a process cannot be asked to stop in the middle of a calibration, so it is
killed, and the next one is forked from a server that has everything imported, within milliseconds.

Guarantees (tests of the same name):
  what_nobody_waits_for_is_ended   a job whose listener has gone does not compute on.
  a_failing_job_says_why           an error of ours in its own words; any other as a defect, and the next job works.
  nobody_waits_behind_a_long_job   so many run at once, and the pages answer meanwhile.
"""

import asyncio
import contextlib
import multiprocessing
import os
import signal
import sys
import traceback
from collections.abc import AsyncGenerator, Callable
from multiprocessing.connection import Connection
from typing import Any

from gdpfed.errors import GdpfedError

__all__ = ["Event", "Processes", "Send"]

Event = dict[str, Any]
Send = Callable[[Event], None]
Job = Callable[[Any, Send], None]

_END = "end of job"
# How often a listener hears that its job goes on, so that one that has gone is noticed.
_PULSE_SECONDS = 0.5


class _Process:
    """One process and the way to it."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["gdpfed.serve.work"])
        self.connection, theirs = context.Pipe()
        self._process = context.Process(target=_work, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()

    async def readable(self, seconds: float) -> bool:
        """Whether something came within so many seconds."""
        loop, arrived = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(self.connection.fileno(), arrived.set)
        try:
            await asyncio.wait_for(arrived.wait(), seconds)
        except TimeoutError:
            return False
        finally:
            loop.remove_reader(self.connection.fileno())
            # Some loops leave it otherwise, and half a message would be an error.
            os.set_blocking(self.connection.fileno(), True)
        return True

    def end(self) -> str:
        """At once, whatever it does; says how it had ended by itself, if it had."""
        self._process.join(0.1)
        code = self._process.exitcode
        self._process.kill()
        self._process.join()
        self.connection.close()
        return "" if code is None else f"with code {code}"


def _work(connection: Connection) -> None:
    # An interrupt at the terminal is the server's business, which ends its processes.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(EOFError, OSError):
        while True:
            job, asked = connection.recv()
            try:
                job(asked, connection.send)
            except GdpfedError as error:
                connection.send({"error": str(error)})
            except Exception:
                traceback.print_exc(file=sys.stderr)
                connection.send({"error": "this is a defect of gdpfed: what happened is on the terminal of the server"})
            connection.send(_END)


class Processes:
    """At most so many jobs at once; further ones wait for their turn."""

    def __init__(self, most: int = 2) -> None:
        self._turns = asyncio.Semaphore(most)
        self._idle: list[_Process] = []

    async def warm(self) -> None:
        """Starts a process before anybody asks: the first has to import everything."""
        self._idle.append(await asyncio.to_thread(_Process))

    async def run(self, job: Job, asked: Any) -> AsyncGenerator[Event, None]:
        """What the job sends, with a pulse while it sends nothing; ends the job where nobody listens any more."""
        while not await self._has_turn():
            yield {"waiting": True}
        try:
            process = self._idle.pop() if self._idle else await asyncio.to_thread(_Process)
            try:
                process.connection.send((job, asked))
                while True:
                    if not await process.readable(_PULSE_SECONDS):
                        yield {"working": True}
                        continue
                    event = process.connection.recv()
                    if event == _END:
                        break
                    yield event
            except BaseException as error:
                how = process.end()
                if not isinstance(error, EOFError | OSError):
                    raise
                yield {"error": f"the computing process ended unexpectedly {how}: is memory short? Try again"}
                return
            self._idle.append(process)
        finally:
            self._turns.release()

    async def _has_turn(self) -> bool:
        try:
            async with asyncio.timeout(_PULSE_SECONDS):
                return await self._turns.acquire()
        except TimeoutError:
            return False

    async def result(self, job: Job, asked: Any) -> Event:
        """All that the job sends, as one."""
        found: Event = {}
        async with contextlib.aclosing(self.run(job, asked)) as events:
            async for event in events:
                found |= event
        return found

    def close(self) -> None:
        """Ends all that are idle; those at work end with their listeners."""
        for process in self._idle:
            process.end()
        self._idle.clear()
