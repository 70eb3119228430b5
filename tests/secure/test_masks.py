"""Masks cancel, and hide."""

import itertools

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from gdpfed.secure.masks import add_mask, add_pair_mask, commitment, pair_key, seal_key, seed_key
from gdpfed.secure.messages import MaskedInput
from gdpfed.secure.primitives import AgreementKey
from tests.secure.cohorts import Stages, World
from tests.training.checkers import FALSE_ALARM

ONE, OTHER = AgreementKey(b"1" * 32), AgreementKey(b"2" * 32)
SESSION = b"s" * 32


@pytest.mark.parametrize("num", [1, 2, 15, 16, 17, 65_535, 65_536, 65_537, 300_001])
def test_pairs_cancel(num: int) -> None:
    mine = pair_key(ONE, OTHER.public, session=SESSION, one=3, other=9)
    theirs = pair_key(OTHER, ONE.public, session=SESSION, one=9, other=3)
    assert mine == theirs
    values = np.random.default_rng(1).integers(0, 2**32, num, dtype=np.uint32)
    left, right = values.copy(), np.zeros(num, dtype=np.uint32)
    add_pair_mask(left, mine, own=3, peer=9)
    add_pair_mask(right, theirs, own=9, peer=3)
    if num > 100:
        assert np.mean(left == values) < 0.01
    assert np.array_equal(left + right, values)
    add_pair_mask(left, mine, own=3, peer=9, remove=True)
    assert np.array_equal(left, values)
    add_mask(left, mine, negative=True)
    add_mask(left, mine, negative=False)
    assert np.array_equal(left, values)


NUM = 3_125_000
Vectors = list[NDArray[np.uint32]]


@pytest.fixture(scope="module")
def masked() -> Vectors:
    """What the eight clients of a cohort send, 10^8 bytes in all: all have the same pattern as their update."""
    stages = Stages.start(World(size=8, num_params=NUM, noise_std=1e5)).share()
    return [
        MaskedInput.decode(stages.clients[client].mask(delivery, pattern(NUM) * 1e-4), num_params=NUM).values
        for client, delivery in stages.deliveries.items()
    ]


def pattern(num: int) -> NDArray[np.float64]:
    return np.sign(np.sin(np.arange(num)))


@pytest.mark.training
def test_masks_are_uniform(masked: Vectors) -> None:
    """Byte chi-square on 10^8 bytes of masked vectors: a byte whose frequency is 0.5 % off is seen."""
    by_place = sum(
        np.array([np.bincount(vector.view(np.uint8)[place::4], minlength=256) for place in range(4)])
        for vector in masked
    )
    assert by_place.sum() == 100_000_000
    # Each of the four bytes of a word, and all together.
    for counts in (*by_place, by_place.sum(0)):
        expected = counts.sum() / 256
        assert ((counts - expected) ** 2 / expected).sum() <= stats.chi2.isf(FALSE_ALARM, 255)


def test_masks_hide_the_input(masked: Vectors) -> None:
    """No correlation of a masked vector with the input, or with another: above 1 in 350 is seen."""
    one, other = ((vector - 2.0**31) / (2.0**32 / np.sqrt(12)) for vector in masked[:2])
    largest = stats.norm.isf(FALSE_ALARM / 2)
    for left, right in ((one, pattern(NUM)), (other, pattern(NUM)), (one, other)):
        assert abs(float(left @ right)) / np.sqrt(NUM) <= largest
    # Positive control: under the noise alone the pattern is plain.
    noisy = pattern(NUM) * 52 + np.random.default_rng(1).standard_normal(NUM) * 1e3
    assert abs(float(noisy @ pattern(NUM))) / 1e3 / np.sqrt(NUM) > 50


def test_keys_are_for_one_session() -> None:
    public = OTHER.public
    keys = [
        pair_key(ONE, public, session=session, one=one, other=other)
        for session, (one, other) in itertools.product((SESSION, b"t" * 32), ((1, 2), (1, 3), (2, 3)))
    ]
    keys += [seal_key(ONE, public, session=SESSION, one=1, other=2)]
    keys += [
        seed_key(b"1" * 32, session=session, client=client) for session in (SESSION, b"t" * 32) for client in (1, 2)
    ]
    keys += [commitment(b"1" * 32, session=SESSION, client=1), commitment(b"1" * 32, session=SESSION, client=2)]
    assert len(set(keys)) == len(keys)
    worlds = [World(size=2, round_number=3), World(size=2, round_number=4), World(size=2, attempt=1)]
    worlds += [World(size=2, model_hash=b"n" * 32), World(size=2, plan_hash=b"q" * 32)]
    assert len({world.session.digest() for world in worlds}) == len(worlds)
