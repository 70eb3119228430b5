"""Orders for the pool's tests: functions that another process can import."""

import os
import time
from pathlib import Path
from typing import Any

from gdpfed.errors import InputError
from gdpfed_reproduce.pool import Report, run_orders


def double(report: Report, number: int) -> int:
    report(f"doubling {number}")
    return 2 * number


def refuse(report: Report, number: int) -> None:
    raise InputError(f"expected another number, got {number}")


def break_down(report: Report) -> None:
    raise ZeroDivisionError("a defect")


def vanish(report: Report) -> None:
    os._exit(9)


def sleep(report: Report, folder: Path) -> None:
    (folder / str(os.getpid())).touch()
    time.sleep(600)


def parent(folder: Path) -> None:
    """What the test kills: a parent of two sleeping processes."""
    orders: list[Any] = [(sleep, (folder,))] * 2
    for _ in run_orders(orders, num_processes=2):
        pass


def count(report: Report, folder: Path, name: str, rounds: int) -> None:
    """Reports every round, a twentieth of a second each; the file is as long as there were rounds."""
    for done in range(rounds):
        with (folder / name).open("a") as file:
            file.write(".")
        time.sleep(0.05)
        report(done)


def tell(report: Report, folder: Path, name: str) -> None:
    """As `count`, for ever, after saying which process it is."""
    (folder / f"{name}.pid").write_text(str(os.getpid()))
    count(report, folder, name, 10_000)
