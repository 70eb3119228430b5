"""Shamir's sharing against its definition."""

import itertools

import pytest

from gdpfed.errors import InputError
from gdpfed.secure.randomness import SimulatedRandomness, Stream
from gdpfed.secure.shares import PRIME, SHARE_BYTES, restore, split

SECRET = bytes(range(200, 232))


def stream(seed: int = 1) -> Stream:
    return SimulatedRandomness(seed=seed, round_number=0, client=0).stream("shares")


@pytest.mark.parametrize("secret", [SECRET, bytes(32), b"\xff" * 32])
def test_any_threshold_of_shares_restores(secret: bytes) -> None:
    shares = split(secret, threshold=4, points=[1, 2, 3, 5, 8, 300], stream=stream())
    assert all(len(share) == SHARE_BYTES for share in shares.values())
    for size in (4, 5, 6):
        for points in itertools.combinations(shares, size):
            assert restore({point: shares[point] for point in points}, threshold=4) == secret


def test_fewer_shares_say_nothing() -> None:
    """With one share less, every secret is possible, each by exactly one value of the missing share.

    Counted in full: the map from the missing share to the secret has a weight that is not 0 in the field, so it is one
    to one. And a secret's shares are different each time.
    """
    shares = split(SECRET, threshold=3, points=[1, 2, 3], stream=stream())
    found = set()
    for value in range(50):
        guess = {1: shares[1], 2: shares[2], 3: value.to_bytes(SHARE_BYTES, "little")}
        weights = {1: 3, 2: -3, 3: 1}  # Lagrange at 0 for 1, 2, 3
        found.add(sum(weights[point] * int.from_bytes(share, "little") for point, share in guess.items()) % PRIME)
    assert len(found) == 50
    assert split(SECRET, threshold=3, points=[1, 2, 3], stream=stream(2))[1] != shares[1]
    assert split(SECRET, threshold=1, points=[1], stream=stream())[1] == SECRET + b"\0"


def test_wrong_shares_are_not_the_secret() -> None:
    shares = split(SECRET, threshold=3, points=[1, 2, 3, 4], stream=stream())
    for place in (0, 15, 31):
        changed = bytearray(shares[2])
        changed[place] ^= 4
        assert restore({**shares, 2: bytes(changed)}, threshold=3) != SECRET
    # Most of the field fits 32 bytes; what does not is no secret.
    assert restore({1: (PRIME - 1).to_bytes(SHARE_BYTES, "little")}, threshold=1) is None


def test_the_field_is_one() -> None:
    """Fermat's test to many bases, and no smaller candidate above 2^256 passes it."""
    assert all(pow(base, PRIME - 1, PRIME) == 1 for base in (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37))
    assert all(pow(3, number - 1, number) != 1 for number in range(2**256 + 1, PRIME, 2))


@pytest.mark.parametrize(
    ("secret", "threshold", "points"),
    [(b"short", 1, [1]), (SECRET, 0, [1, 2]), (SECRET, 3, [1, 2]), (SECRET, 2, [1, 1]), (SECRET, 2, [0, 1])],
)
def test_bad_arguments_are_refused(secret: bytes, threshold: int, points: list[int]) -> None:
    with pytest.raises(InputError) as caught:
        split(secret, threshold=threshold, points=points, stream=stream())
    assert "short" not in str(caught.value)


def test_too_few_shares_are_refused() -> None:
    with pytest.raises(InputError, match="2 shares"):
        restore({1: bytes(33)}, threshold=2)
