"""Fresh where it must be, repeated where it may."""

import itertools
import os

import numpy as np
import pytest

from gdpfed.errors import InputError
from gdpfed.secure.randomness import SimulatedRandomness, SystemRandomness


def test_streams_are_fresh() -> None:
    """No two of the same source, of the same purpose, or of a forked process."""
    source = SystemRandomness()
    drawn = [source.stream("noise").take(32) for _ in range(20)]
    assert len(set(drawn)) == 20
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, source.stream("noise").take(32))
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 32) not in (*drawn, source.stream("noise").take(32))
    os.close(read)
    os.close(write)


def test_there_is_no_seed_in_a_deployment() -> None:
    with pytest.raises(TypeError):
        SystemRandomness(seed=1)  # type: ignore[call-arg]


def test_simulated_streams_have_addresses() -> None:
    names = ("seed", "round_number", "client", "place", "attempt")
    drawn = set()
    addresses = list(itertools.product((0, 1, 2**32), (0, 1), (0, 1, 2**32), (0, 1), (0, 1)))
    for address in addresses:
        source = SimulatedRandomness(**dict(zip(names, address, strict=True)))
        for purpose in ("keys", "noise"):
            taken = source.stream(purpose).take(16)
            assert taken == source.stream(purpose).take(16)
            drawn.add(taken)
    assert len(drawn) == 2 * len(addresses)
    with pytest.raises(InputError, match=">= 0"):
        SimulatedRandomness(seed=-1, round_number=0, client=0)


def test_words_are_the_bytes() -> None:
    source = SimulatedRandomness(seed=1, round_number=0, client=0)
    words = source.stream("noise").words(1000)
    assert words.dtype == np.uint64
    assert words.astype("<u8").tobytes() == source.stream("noise").take(8000)
