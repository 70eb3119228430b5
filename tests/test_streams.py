"""Randomness by address."""

import itertools
import subprocess
import sys

import numpy as np
import pytest

from gdpfed import streams
from gdpfed.errors import InputError


def test_addresses_are_independent() -> None:
    """Correlations of all pairs of 168 streams of 2,000 numbers: the largest of 14,028 standard normal numbers exceeds
    6.8 with a probability below 1e-6."""
    addresses = list(itertools.product((0, 1, 2**32, 2**40 + 1), streams.ROLES, (0, 1), (0, 1, 2)))
    drawn = np.array(
        [
            streams.generator(seed, role, round_number=round_number, client=client).standard_normal(2_000)
            for seed, role, round_number, client in addresses
        ]
    )
    together = drawn @ drawn.T / np.sqrt(2_000)
    assert np.abs(together[~np.eye(len(drawn), dtype=bool)]).max() < 6.8
    assert len({row.tobytes() for row in drawn}) == len(addresses)


def test_no_two_addresses_meet() -> None:
    """Seeds of any size and numbers that look like each other's: all first numbers differ."""
    values = (0, 1, 2, 3, 2**31, 2**32 - 1)
    firsts = {
        streams.generator(seed, role, round_number=round_number, client=client).integers(2**63)
        for seed, role, round_number, client in itertools.product(
            (*values, 2**32, 2**32 + 1, 2**64, 2**64 + 1), streams.ROLES, values, values
        )
    }
    assert len(firsts) == 10 * len(streams.ROLES) * 6 * 6


def test_same_address_same_numbers() -> None:
    """Also in another process, and as they were when this was written."""
    code = "from gdpfed import streams; print(streams.generator(7, 'noise', round_number=2, client=5).random().hex())"
    elsewhere = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    here = streams.generator(7, "noise", round_number=2, client=5)
    assert here.random().hex() == elsewhere == "0x1.2974505923dbap-2"
    # Fresh at every call: using one does not move another.
    assert streams.generator(7, "noise", round_number=2, client=5).random().hex() == elsewhere


@pytest.mark.parametrize("bad", [{"seed": -1}, {"round_number": -1}, {"client": -1}])
def test_negative_addresses_are_refused(bad: dict[str, int]) -> None:
    with pytest.raises(InputError, match=">= 0"):
        streams.generator(**{"seed": 1, "role": "noise", **bad})  # type: ignore[arg-type]


def test_unknown_roles_are_refused() -> None:
    with pytest.raises(ValueError, match="tuple"):
        streams.generator(1, "nonsense")
