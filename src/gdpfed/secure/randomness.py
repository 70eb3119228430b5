"""Where keys, seeds and noise come from: the operating system, or an address in a simulation.

Place: an argument of client and server. A deployment uses `SystemRandomness`, the default, which has no seed and keeps
no state between streams, so that a forked process never repeats its parent. `SimulatedRandomness` repeats on purpose:
it is for simulations and tests, and what it makes is no private release.

Guarantees (tests of the same name):
  streams_are_fresh              no two streams of the system are alike, also after a fork.
  simulated_streams_have_addresses   the same address gives the same bytes, every other one others.
"""

import hashlib
import os
import struct
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from gdpfed.errors import InputError
from gdpfed.secure.primitives import KEY_BYTES, KeyStream

__all__ = ["Randomness", "SimulatedRandomness", "Stream", "SystemRandomness"]


class Stream(KeyStream):
    """Cryptographic random bytes for one purpose."""

    __slots__ = ()

    def words(self, num: int) -> NDArray[np.uint64]:
        """The next 64-bit numbers."""
        drawn = np.empty(num, dtype="<u8")
        self.fill(drawn.view(np.uint8))
        return drawn.astype(np.uint64, copy=False)


class Randomness(Protocol):
    """Makes a stream for a purpose."""

    def stream(self, purpose: str) -> Stream:
        """A stream that is used for nothing else."""
        ...


class SystemRandomness:
    """Every stream has a fresh key from the operating system."""

    def stream(self, purpose: str) -> Stream:  # noqa: ARG002 - a fresh key needs no name
        """A fresh stream."""
        return Stream(os.urandom(KEY_BYTES))


class SimulatedRandomness:
    """Streams that follow from a seed and an address. Reproducible, hence never private."""

    __slots__ = ("_address",)

    def __init__(self, *, seed: int, round_number: int, client: int, place: int = 0, attempt: int = 0) -> None:
        if min(seed, round_number, client, place, attempt) < 0:
            raise InputError("expected seed, round, client, place and attempt >= 0")
        numbers = struct.pack("<QQQQ", round_number, client, place, attempt)
        self._address = b"gdpfed simulation\x00" + numbers + seed.to_bytes(32, "little")

    def stream(self, purpose: str) -> Stream:
        """The stream of this purpose at this address, from its beginning."""
        return Stream(hashlib.sha256(self._address + purpose.encode()).digest())
