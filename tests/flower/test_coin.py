"""A node's coin: its probability, and that nothing tells how it fell."""

import fcntl
import os
import time
from collections import Counter
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from gdpfed.flower.node import coin
from gdpfed.flower.node.coin import alone, hidden_update, next_moment, sleep_until, toss

NOTHING = b"nothing"


@pytest.mark.parametrize("rate", [0.02, 0.1, 1 / 3, 0.5, 1.0])
def test_the_coin_is_exact(rate: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all numbers that may be drawn, so many say yes: exactly the float's own fraction. And the draw is uniform.

    20,000 tosses are within 5 standard deviations of the rate: a false alarm once in two million.
    """
    tosses = [toss(rate) for _ in range(20_000)]
    assert abs(np.mean(tosses) - rate) <= 5 * np.sqrt(rate * (1 - rate) / len(tosses))
    numerator, denominator = rate.as_integer_ratio()
    assert Fraction(numerator, denominator) == Fraction(rate)
    for drawn, expected in ((0, True), (numerator - 1, True), (numerator, False)):
        monkeypatch.setattr(coin.secrets, "randbelow", {denominator: drawn}.__getitem__)
        assert toss(rate) is expected


def test_both_sides_take_as_long() -> None:
    for says_yes in (True, False):
        started = time.monotonic()
        result = hidden_update(lambda: b"update", says_yes=says_yes, nothing=NOTHING, ready_at=started + 0.2)
        assert time.monotonic() >= started + 0.2
        assert result == (b"update" if says_yes else NOTHING)


def test_what_is_late_is_zero(capfd: pytest.CaptureFixture[str]) -> None:
    def slow() -> bytes:
        time.sleep(0.6)
        return b"late"

    def broken() -> bytes:
        raise MemoryError

    for train in (slow, broken):
        started = time.monotonic()
        assert hidden_update(train, says_yes=True, nothing=NOTHING, ready_at=started + 0.1) is NOTHING
        assert started + 0.1 <= time.monotonic() < started + 0.6
    assert capfd.readouterr() == ("", "")


def test_what_is_late_is_stopped() -> None:
    """A loop without end; and a training whose turn comes too late does not begin."""
    steps = [0]

    def endless() -> bytes:
        while True:
            steps[0] += 1
            time.sleep(0.001)

    hidden_update(endless, says_yes=True, nothing=NOTHING, ready_at=time.monotonic() + 0.1)
    time.sleep(0.1)
    taken = steps[0]
    time.sleep(0.1)
    assert steps[0] == taken > 0
    hidden_update(endless, says_yes=True, nothing=NOTHING, ready_at=time.monotonic())
    assert steps[0] == taken


def is_free(path: Path) -> bool:
    """Whether another process would get the lock at once."""
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def test_one_at_a_time(tmp_path: Path) -> None:
    """Held until the outermost block ends, and not a moment longer: whatever a training forked holds nothing."""
    path = tmp_path / "key"
    path.touch()
    with alone(path):
        with alone(path):
            pass
        assert not is_free(path)
        forked = os.fork()
        if not forked:
            os._exit(len(coin._held))
        assert os.waitstatus_to_exitcode(os.waitpid(forked, 0)[1]) == 0
        assert not is_free(path)
        # As a process has it that was started without Python's help.
        copy = os.dup(next(iter(coin._held.values())).fileno())
    assert is_free(path)
    os.close(copy)


def test_what_is_late_waits_for_the_next_moment() -> None:
    now = time.monotonic()
    assert next_moment(now + 5, every=0.5) == now + 5
    late = next_moment(now - 1.2, every=0.5)
    assert late == pytest.approx(now - 1.2 + 1.5)
    assert late >= now


def test_a_moment_that_has_passed_is_not_waited_for() -> None:
    sleep_until(time.monotonic() - 1)
    counted: Counter[bool] = Counter(toss(1.0) for _ in range(5))
    assert counted == {True: 5}
