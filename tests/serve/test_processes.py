"""Jobs in processes of their own."""

import asyncio
import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from gdpfed.errors import InputError
from gdpfed.serve.processes import Event, Processes, Send

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parents[2]


def counting(asked: int, send: Send) -> None:
    for number in range(asked):
        send({"words": number})
    send({"process": os.getpid()})


def sleeping(asked: float, send: Send) -> None:
    send({"process": os.getpid()})
    end = time.monotonic() + asked
    while time.monotonic() < end:
        sum(range(1000))
    send({"slept": True})


def refusing(asked: str, send: Send) -> None:
    raise InputError(asked)


def failing(asked: str, send: Send) -> None:
    raise ZeroDivisionError(asked)


def vanishing(asked: str, send: Send) -> None:
    os._exit(1)


def is_alive(process: int) -> bool:
    with contextlib.suppress(OSError):
        os.kill(process, 0)
        return True
    return False


async def events(processes: Processes, job: Any, asked: Any) -> list[Event]:
    return [event async for event in processes.run(job, asked)]


def test_what_nobody_waits_for_is_ended() -> None:
    async def play() -> None:
        processes = Processes(most=1)
        stream = processes.run(sleeping, 60.0)
        process = next(event["process"] for event in [await anext(stream), await anext(stream)] if "process" in event)
        assert is_alive(process)
        await stream.aclose()
        assert not is_alive(process)
        # And so where the task that listens is cancelled.
        task = asyncio.create_task(processes.result(sleeping, 60.0))
        await asyncio.sleep(1.0)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        assert (await processes.result(counting, 2))["process"] > 0
        processes.close()

    asyncio.run(play())


def test_a_failing_job_says_why() -> None:
    async def play() -> None:
        processes = Processes(most=1)
        assert (await processes.result(refusing, "no such file")) == {"error": "no such file"}
        assert "defect" in (await processes.result(failing, "oh"))["error"]
        assert "unexpectedly" in (await processes.result(vanishing, ""))["error"]
        first = await processes.result(counting, 3)
        assert first["words"] == 2
        assert (await processes.result(counting, 1))["process"] == first["process"], "a process is used again"
        processes.close()

    asyncio.run(play())


def test_a_defect_is_shown_on_the_terminal() -> None:
    """In a process of its own: the server that forks jobs keeps the stderr of whoever started it first."""
    script = (
        "import asyncio\n"
        "from gdpfed.serve.processes import Processes\n"
        "from tests.serve.test_processes import failing\n"
        "asyncio.run(Processes(most=1).result(failing, 'by nothing'))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert "ZeroDivisionError: by nothing" in done.stderr


def test_nobody_waits_behind_a_long_job() -> None:
    async def play() -> None:
        processes = Processes(most=2)
        await processes.warm()
        long = asyncio.create_task(processes.result(sleeping, 3.0))
        await asyncio.sleep(0.2)
        assert "process" in await processes.result(counting, 1)
        assert not long.done()
        # A third waits for its turn, and hears so.
        other = asyncio.create_task(processes.result(sleeping, 2.0))
        await asyncio.sleep(0.2)
        heard = await events(processes, counting, 1)
        assert {"waiting": True} in heard
        assert (await long)["slept"]
        assert (await other)["slept"]
        processes.close()

    asyncio.run(play())
