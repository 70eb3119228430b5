"""Run as a program: forks children that play rounds of a ledger and are killed (SIGKILL) at a named point.

What a child releases it appends to a file, `releases`, which stands for the world outside. After each kill the ledger
is read and compared with it. Arguments: folder with pristine ledger files, kills for each point; prints one JSON line.
"""

import contextlib
import hashlib
import json
import os
import random
import shutil
import signal
import sys
from pathlib import Path

import numpy as np

from gdpfed.ledger.book import Ledger

STAGES = ("before-journal", "torn-journal", "after-journal", "before-commit", "after-commit")
POINTS = [f"{kind}:{stage}" for kind in ("reserve", "charge", "publish") for stage in STAGES]
POINTS += ["release:before", "release:after"]
RUN, GROUP = "run", "everyone"


def play(folder: Path, *, rounds: int, point: str = "", occasion: int = 0) -> None:
    """Plays up to ``rounds`` rounds that are not published yet; dies at the ``occasion``-th passing of ``point``."""
    seen = 0

    def fault(name: str) -> None:
        nonlocal seen
        seen += name == point
        if point and seen == occasion:
            os.kill(os.getpid(), signal.SIGKILL)

    with Ledger.open(folder / "book", fault=fault) as ledger:
        run = ledger.state.run(RUN)
        published = {number for (number, _), attempts in run.attempts.items() if attempts[-1].state == "published"}
        unpublished = [number for number in range(run.num_rounds) if number not in published]
        for number in unpublished[:rounds]:
            charge = ledger.reserve(RUN, number, GROUP)
            charge.commit(np.array([number % 50]))
            fault("release:before")
            content = hashlib.sha256(os.urandom(8)).hexdigest()
            line = f"{number} {charge.attempt.attempt} {content}\n".encode()
            outside = os.open(folder / "releases", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            os.write(outside, line)
            os.close(outside)
            fault("release:after")
            charge.publish(content)


def releases(folder: Path) -> dict[tuple[int, int], str]:
    """What the world has seen, by round and attempt; each once."""
    with contextlib.suppress(FileNotFoundError):
        lines = [line.split() for line in (folder / "releases").read_text().splitlines()]
        seen = {(int(number), int(attempt)): content for number, attempt, content in lines}
        assert len(seen) == len(lines), "an attempt was released twice"
        return seen
    return {}


def compare(folder: Path, lost_before: int) -> int:
    """Checks the ledger against the world outside; returns how many charges have no release."""
    run = Ledger.read(folder / "book").state.run(RUN)
    attempts = [attempt for tries in run.attempts.values() for attempt in tries]
    seen = releases(folder)
    charged = {(a.round_number, a.attempt) for a in attempts if a.state in ("charged", "published")}
    assert set(seen) <= charged, "released without a charge"
    for attempt in attempts:
        if attempt.state == "published":
            assert seen[attempt.round_number, attempt.attempt] == attempt.content_hash
    lost = len(charged) - len(seen)
    assert lost_before <= lost <= lost_before + 1, (lost_before, lost)
    return lost


def killed(folder: Path, point: str, occasion: int) -> None:
    child = os.fork()
    if child == 0:
        try:
            play(folder, rounds=4, point=point, occasion=occasion)
        finally:
            os._exit(3)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status), (point, status)
    assert os.WTERMSIG(status) == signal.SIGKILL


def main(pristine: Path, kills: int) -> None:
    chance = random.Random(os.urandom(8))  # noqa: S311 - when to kill
    summary = {}
    for point in POINTS:
        folder = pristine.with_name(point.replace(":", "-"))
        shutil.copytree(pristine, folder)
        lost = 0
        for _ in range(kills):
            killed(folder, point, chance.randint(1, 3))
            lost = compare(folder, lost)
        play(folder, rounds=2)
        assert compare(folder, lost) == lost
        run = Ledger.read(folder / "book").state.run(RUN)
        summary[point] = {"lost": lost, "charged": run.charged[0], "released": len(releases(folder))}
    sys.stdout.write(json.dumps(summary) + "\n")


def finish(folder: Path) -> None:
    """Kills at random points until every round is published."""
    chance = random.Random(os.urandom(8))  # noqa: S311 - when to kill
    kills = lost = 0
    # The first kills lose a round for certain.
    points = ["release:before", "charge:after-commit"]
    while Ledger.read(folder / "book").state.run(RUN).count("published") < 28:
        killed(folder, points.pop() if points else chance.choice(POINTS), chance.randint(1, 3))
        kills += 1
        lost = compare(folder, lost)
    play(folder, rounds=100)
    compare(folder, lost)
    sys.stdout.write(json.dumps({"kills": kills, "lost": lost}) + "\n")


if __name__ == "__main__":
    if sys.argv[2] == "finish":
        finish(Path(sys.argv[1]))
    else:
        main(Path(sys.argv[1]), int(sys.argv[2]))
