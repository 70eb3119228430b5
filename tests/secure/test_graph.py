"""Circles: shape, and bounds that hold."""

import itertools

import numpy as np
import pytest

from gdpfed.errors import InputError
from gdpfed.secure.graph import circle, failure, fewest_in_two_runs, neighbours, topology
from gdpfed.secure.noise_shares import Tolerance

TENTH = Tolerance(dropout_rate=0.1, colluding_fraction=0.1)


@pytest.mark.parametrize(("cohort", "degree"), [(1, 0), (2, 1), (7, 6), (150, 40), (151, 40), (1000, 60)])
def test_everyone_has_the_same_degree(cohort: int, degree: int) -> None:
    found = neighbours(b"r" * 32, cohort=cohort, degree=degree)
    assert len(found) == cohort
    for place, near in enumerate(found):
        assert len(near) == len(set(near)) == degree
        assert place not in near
        assert list(near) == sorted(near)
        assert all(place in found[other] for other in near)


def test_order_follows_from_the_roster() -> None:
    one, again, other = (neighbours(digest * 32, cohort=200, degree=40) for digest in (b"1", b"1", b"2"))
    assert one == again != other
    assert neighbours(b"1" * 32, cohort=5, degree=2) == ((2, 3), (2, 4), (0, 1), (0, 4), (1, 3))
    with pytest.raises(InputError, match="even"):
        neighbours(b"1" * 32, cohort=10, degree=3)


@pytest.mark.parametrize(
    "tolerance", [Tolerance(), TENTH, Tolerance(dropout_rate=0.2, colluding_fraction=0.3), Tolerance(dropout_rate=0.4)]
)
@pytest.mark.parametrize("cohort", [1, 2, 3, 8, 100, 101, 150, 300, 1000])
def test_thresholds_are_above_half(cohort: int, tolerance: Tolerance) -> None:
    shape = topology(cohort, tolerance)
    assert shape.cohort == cohort
    assert 2 * shape.threshold > shape.num_holders
    assert shape.threshold <= shape.num_holders
    assert 2 * shape.quorum > cohort + tolerance.liars(cohort)
    assert shape.quorum <= shape.smallest_survivors
    if cohort <= 100 or shape.degree == cohort - 1:
        assert shape.degree == cohort - 1
        # Colluders alone never reach it, survivors always do.
        assert shape.colluders < shape.threshold <= shape.smallest_survivors
    else:
        assert failure(cohort, tolerance.liars(cohort), shape.degree, shape.threshold) <= 2**-64
        # Fewer than the threshold left: more than the rest lost.
        assert failure(cohort, shape.dropouts, shape.degree, shape.degree - shape.threshold + 1) <= 2**-10


def test_cost_does_not_grow_with_the_cohort() -> None:
    degrees = [topology(cohort, TENTH).degree for cohort in (150, 300, 1000, 3000)]
    assert max(degrees) <= 72
    assert topology(100, TENTH).degree == 99
    assert topology(300, Tolerance(dropout_rate=0.1, colluding_fraction=0.1, complete_up_to=300)).degree == 299


def two_runs(present: list[bool], degree: int) -> int:
    """Pair by pair."""
    cohort, length = len(present), degree // 2
    runs = [{(start + step) % cohort for step in range(length)} for start in range(cohort)]
    return min(
        sum(present[place] for place in one | other)
        for one, other in itertools.combinations(runs, 2)
        if not one & other
    )


def test_fewest_in_two_runs_is_exact() -> None:
    generator = np.random.default_rng(1)
    for cohort, degree in ((9, 4), (10, 8), (11, 8), (17, 8), (24, 10), (40, 12), (41, 2)):
        for share in (0.5, 0.9):
            present = (generator.random(cohort) < share).tolist()
            assert fewest_in_two_runs(present, degree=degree) == two_runs(present, degree)


@pytest.mark.training
def test_failure_bounds_hold() -> None:
    """Small circles with many losses, 4,000 of them: the bounds are above what happens, and not absurdly."""
    cohort, degree, threshold, dropouts, colluders = 40, 12, 7, 8, 9
    generator = np.random.default_rng(1)
    caught = incomplete = 0
    num = 4_000
    for _ in range(num):
        order = generator.permutation(cohort)
        bad, lost = set(order[:colluders].tolist()), set(order[-dropouts:].tolist())
        caught += any(
            len(bad & set(one) | bad & set(other)) >= threshold
            for one, other in itertools.combinations(
                [[(start + step) % cohort for step in range(degree // 2)] for start in range(cohort)], 2
            )
            if not set(one) & set(other)
        )
        present = [place not in lost for place in range(cohort)]
        incomplete += fewest_in_two_runs(present, degree=degree) < threshold
    assert 0 < caught / num <= failure(cohort, colluders, degree, threshold)
    assert 0 < incomplete / num <= failure(cohort, dropouts, degree, degree - threshold + 1)


def test_the_rule_keeps_survivors_connected() -> None:
    """Colluders anywhere, losses by an adversary who cuts where it can: what passes the rule is connected.

    Where it does not pass, the same losses often cut the circle: the rule is not idle.
    """
    cohort, degree, threshold = 40, 12, 7
    generator = np.random.default_rng(2)
    cut = kept = 0
    for trial in range(3_000):
        digest = trial.to_bytes(32, "little")
        standing = circle(digest, cohort=cohort)
        near = neighbours(digest, cohort=cohort, degree=degree)
        bad = set(generator.choice(cohort, 6, replace=False).tolist())
        # Two runs, of which as many are lost as there is no colluder in.
        starts = generator.integers(0, cohort, 2)
        runs = {standing[(start + step) % cohort] for start in starts for step in range(degree // 2)}
        spared = int(generator.integers(0, 4))
        lost = set(generator.permutation(sorted(runs - bad)).tolist()[spared:])
        present = [place not in lost for place in standing]
        honest = [place for place in range(cohort) if place not in lost | bad]
        passes = fewest_in_two_runs(present, degree=degree) >= threshold
        whole = connected(honest, near)
        assert whole or not passes
        cut += not whole
        kept += passes
    assert cut > 100
    assert kept > 100
    neighbours.cache_clear()
    circle.cache_clear()


def connected(alive: list[int], near: tuple[tuple[int, ...], ...]) -> bool:
    allowed, seen, waiting = set(alive), {alive[0]}, [alive[0]]
    while waiting:
        for other in near[waiting.pop()]:
            if other in allowed and other not in seen:
                seen.add(other)
                waiting.append(other)
    return seen == allowed


def test_a_run_is_what_it_takes_to_cut_a_circle() -> None:
    """All ways to lose some of 9 clients in a circle of degree 4: without two in a row lost nobody is cut off."""
    near = neighbours(b"1" * 32, cohort=9, degree=4)
    standing = circle(b"1" * 32, cohort=9)
    for size in (2, 3, 4):
        for lost in itertools.combinations(range(9), size):
            places = sorted(standing.index(client) for client in lost)
            runs = any((place + 1) % 9 in places for place in places)
            alive = [client for client in range(9) if client not in lost]
            assert connected(alive, near) or runs
