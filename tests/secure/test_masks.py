"""Masks cancel, and hide."""

import itertools

import numpy as np
import pytest
from scipy import stats

from gdpfed.secure.client import SecureClient
from gdpfed.secure.masks import add_mask, add_pair_mask, commitment, pair_key, seal_key, seed_key
from gdpfed.secure.messages import MaskedInput
from gdpfed.secure.primitives import AgreementKey
from tests.secure.cohorts import World
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


def masked_bytes(client: SecureClient, delivery: bytes, update: object, num: int) -> np.ndarray:  # type: ignore[type-arg]
    return MaskedInput.decode(client.mask(delivery, update), num_params=num).values


@pytest.fixture(scope="module")
def pair_of_vectors() -> tuple[np.ndarray, np.ndarray]:  # type: ignore[type-arg]
    """What two clients of a cohort of three send, 12,500,000 coordinates each: one a constant, one its own pattern."""
    num = 12_500_000
    world = World(size=3, num_params=num, noise_std=1e5)
    clients = [world.client(number) for number in range(3)]
    server = world.server()
    for client in clients:
        server.receive_advertisement(client.advertise())
    roster = server.roster()
    for client in clients:
        server.receive_shares(client.share(roster))
    deliveries = server.deliveries()
    pattern = np.sign(np.sin(np.arange(num))) * 1e-3
    return (
        masked_bytes(clients[0], deliveries[0], np.zeros(num), num),
        masked_bytes(clients[1], deliveries[1], pattern, num),
    )


def test_masks_are_uniform(pair_of_vectors: tuple[np.ndarray, np.ndarray]) -> None:  # type: ignore[type-arg]
    """Byte chi-square on 10^8 bytes of masked vectors: a byte whose frequency is 0.5 % off is seen."""
    counts = sum(np.bincount(vector.view(np.uint8), minlength=256) for vector in pair_of_vectors)
    assert counts.sum() == 100_000_000
    expected = counts.sum() / 256
    assert ((counts - expected) ** 2 / expected).sum() <= stats.chi2.isf(FALSE_ALARM, 255)
    # And each of the four bytes of a word.
    for place in range(4):
        found = np.bincount(pair_of_vectors[0].view(np.uint8)[place::4], minlength=256)
        expected = found.sum() / 256
        assert ((found - expected) ** 2 / expected).sum() <= stats.chi2.isf(FALSE_ALARM, 255)


def test_masks_hide_the_input(pair_of_vectors: tuple[np.ndarray, np.ndarray]) -> None:  # type: ignore[type-arg]
    """Correlation with the input below 1 in 700 (false alarm 1e-6); between the two, too."""
    one, other = ((vector[:4_000_000] - 2.0**31) / (2.0**32 / np.sqrt(12)) for vector in pair_of_vectors)
    pattern = np.sign(np.sin(np.arange(4_000_000)))
    largest = stats.norm.isf(FALSE_ALARM / 2)
    assert abs(float(other @ pattern)) / 2_000 <= largest
    assert abs(float(one @ other)) / 2_000 <= largest
    # Positive control: without masks the pattern is plain.
    unmasked = pattern * 524 + np.random.default_rng(1).standard_normal(len(pattern)) * 1e4
    assert abs(float(unmasked @ pattern)) / 1e4 / 2_000 > 50


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
