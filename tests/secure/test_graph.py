"""Circles: shape, and bounds that hold."""

import itertools

import numpy as np
import pytest

from gdpfed.errors import InputError
from gdpfed.secure.graph import failures, neighbours, topology
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
    assert 2 * shape.quorum > cohort + shape.colluders
    assert shape.quorum <= shape.smallest_survivors
    if cohort <= 100 or shape.degree == cohort - 1:
        assert shape.degree == cohort - 1
        # Colluders alone never reach it, survivors always do.
        assert shape.colluders < shape.threshold <= shape.smallest_survivors
    else:
        security, completeness = failures(
            cohort=cohort,
            degree=shape.degree,
            threshold=shape.threshold,
            dropouts=shape.dropouts,
            colluders=shape.colluders,
        )
        assert security <= 2**-40
        assert completeness <= 2**-20


def test_cost_does_not_grow_with_the_cohort() -> None:
    degrees = [topology(cohort, TENTH).degree for cohort in (150, 300, 1000, 3000)]
    assert max(degrees) <= 60
    assert topology(100, TENTH).degree == 99
    assert topology(300, Tolerance(dropout_rate=0.1, colluding_fraction=0.1, complete_up_to=300)).degree == 299


def test_failure_bounds_hold() -> None:
    """Small circles with many losses, 4,000 of them: the bounds are above what happens, and not absurdly."""
    cohort, degree, threshold, dropouts, colluders = 40, 8, 5, 6, 5
    generator = np.random.default_rng(1)
    insecure = incomplete = 0
    num = 4_000
    for trial in range(num):
        near = neighbours(trial.to_bytes(32, "little"), cohort=cohort, degree=degree)
        order = generator.permutation(cohort)
        bad, lost = set(order[:colluders].tolist()), set(order[colluders : colluders + dropouts].tolist())
        alive = [place for place in range(cohort) if place not in bad | lost]
        caught = any(len(bad & set(near[place])) >= threshold for place in alive)
        insecure += caught or not connected(alive, near)
        holders = [1 - (place in lost) + len(set(near[place]) - lost) for place in range(cohort)]
        incomplete += min(holders) < threshold
    security, completeness = failures(
        cohort=cohort, degree=degree, threshold=threshold, dropouts=dropouts, colluders=colluders
    )
    assert insecure / num <= security
    assert 0 < incomplete / num <= completeness <= 1
    neighbours.cache_clear()


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
    circle = [0]
    # Walk the circle: the next is the one that shares most neighbours and is not yet there.
    while len(circle) < 9:
        here = circle[-1]
        options = [other for other in near[here] if other not in circle]
        circle.append(max(options, key=lambda other: len(set(near[other]) & set(near[here]))))
    for size in (2, 3, 4):
        for lost in itertools.combinations(range(9), size):
            places = sorted(circle.index(client) for client in lost)
            runs = any((place + 1) % 9 in places for place in places)
            alive = [client for client in range(9) if client not in lost]
            assert connected(alive, near) or runs
