"""Masks mod 2^32: one for each pair of neighbours, which cancel, and one for each client alone.

Place: the last thing that a client adds, the first that the server takes off. A pair's key is agreed by X25519, a
client's own comes from its seed; both are derived for one session and one purpose, and expanded by ChaCha20. The client
with the lower number adds the pair's mask, the other subtracts it.

Guarantees (tests of the same name):
  pairs_cancel                    bit for bit, for every number of coordinates.
  masks_are_uniform               byte chi-square on 10^8 bytes of masked vectors.
  masks_hide_the_input            no correlation between input and masked vector.
  keys_are_for_one_session        another round, attempt, model or pair has another mask.
"""

import functools
import hashlib
import struct

import numpy as np
from numpy.typing import NDArray

from gdpfed.secure.primitives import AgreementKey, KeyStream, derive

__all__ = ["add_mask", "add_pair_mask", "commitment", "confirmation_key", "pair_key", "seal_key", "seed_key"]


def _paired(purpose: bytes, private: AgreementKey, public: bytes, *, session: bytes, one: int, other: int) -> bytes:
    """A key of two clients: the same from either side."""
    pair = struct.pack("<II", min(one, other), max(one, other))
    return derive(private.agree(public), info=purpose + session + pair)


# For their common mask; for the shares that one sends the other; and for what both confirm.
pair_key = functools.partial(_paired, b"gdpfed mask v1\x00")
seal_key = functools.partial(_paired, b"gdpfed seal v2\x00")
confirmation_key = functools.partial(_paired, b"gdpfed confirmation v1\x00")


def seed_key(seed: bytes, *, session: bytes, client: int) -> bytes:
    """The key of a client's own mask."""
    return derive(seed, info=b"gdpfed self v1\x00" + session + struct.pack("<I", client))


def commitment(seed: bytes, *, session: bytes, client: int) -> bytes:
    """What lets the server see that it put the right seed together. The seed has 256 random bits: it stays hidden."""
    return hashlib.sha256(b"gdpfed commit v1\x00" + session + struct.pack("<I", client) + seed).digest()


def add_mask(vector: NDArray[np.uint32], key: bytes, *, negative: bool) -> None:
    """Adds the mask of ``key`` to ``vector``, or subtracts it, in place, mod 2^32."""
    apply = np.subtract if negative else np.add
    for where, words in KeyStream(key).pieces(len(vector)):
        apply(vector[where], words, out=vector[where])


def add_pair_mask(vector: NDArray[np.uint32], key: bytes, *, own: int, peer: int, remove: bool = False) -> None:
    """The mask that client ``own`` adds for ``peer``; ``remove`` takes it off again."""
    add_mask(vector, key, negative=(own > peer) != remove)
