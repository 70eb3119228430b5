"""A node's coin: its probability, and that nothing tells how it fell."""

import time
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest

from gdpfed.flower.node import coin
from gdpfed.flower.node.coin import hidden_update, next_moment, sleep_until, toss

NOTHING = np.zeros(3)


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
        result = hidden_update(lambda: np.ones(3), says_yes=says_yes, nothing=NOTHING, ready_at=started + 0.2)
        assert time.monotonic() >= started + 0.2
        assert result.tolist() == ([1.0] * 3 if says_yes else [0.0] * 3)


def test_what_is_late_is_zero() -> None:
    started = time.monotonic()

    def slow() -> np.ndarray:
        time.sleep(0.6)
        return np.ones(3)

    assert hidden_update(slow, says_yes=True, nothing=NOTHING, ready_at=started + 0.1) is NOTHING
    assert time.monotonic() < started + 0.6


def test_what_is_late_waits_for_the_next_moment() -> None:
    now = time.monotonic()
    assert next_moment(now + 5, every=0.5) == now + 5
    late = next_moment(now - 1.2, every=0.5)
    assert late == pytest.approx(now - 1.2 + 1.5)
    assert late >= now
    assert next_moment(now - 1.2, every=None) == now - 1.2


def test_a_moment_that_has_passed_is_not_waited_for() -> None:
    sleep_until(time.monotonic() - 1)
    counted: Counter[bool] = Counter(toss(1.0) for _ in range(5))
    assert counted == {True: 5}
