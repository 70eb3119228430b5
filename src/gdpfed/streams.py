"""Randomness by address: the same seed, role, round and client give the same numbers, whatever else happens.

Place: used by everything in a simulation that draws. A generator is made for an address and used for one thing, so
results do not depend on the order of work, on the cohort, on chunks or on the number of workers. Seeded, hence
reproducible, hence never private: a deployment draws from the operating system and has no seed.

Guarantees (tests of the same name):
  addresses_are_independent    different seeds, roles, rounds or clients give different streams.
  same_address_same_numbers    also in another process, on another day.
"""

import numpy as np

from gdpfed.errors import InputError, expect

__all__ = ["ROLES", "check_seed", "generator"]

ROLES = ("partition", "groups", "model", "sample", "batches", "noise", "dropout", "masks")


def check_seed(seed: int) -> None:
    """Refuses what torch cannot take."""
    expect(0 <= seed < 2**63, "a seed >= 0 and below 2**63", seed=seed)


def generator(seed: int, role: str, *, round_number: int = 0, client: int = 0) -> np.random.Generator:
    """A fresh generator for one use at this address."""
    if min(seed, round_number, client) < 0:
        raise InputError(f"expected seed, round and client >= 0, got {seed}, {round_number} and {client}")
    sequence = np.random.SeedSequence([seed, ROLES.index(role), round_number, client])
    return np.random.Generator(np.random.Philox(sequence))
