"""Ten thousand random strategies of a malicious server, and the same program with a defence taken out."""

import dataclasses
from collections.abc import Iterator

import numpy as np
import pytest

from gdpfed.secure import messages
from gdpfed.secure.client import SecureClient
from gdpfed.secure.graph import topology
from gdpfed.secure.noise_shares import Tolerance, excess
from tests.attacks.malicious_cohort import prepared
from tests.attacks.malicious_server import Tally, play
from tests.attacks.malicious_strategy import Attack
from tests.secure.cohorts import World

pytestmark = pytest.mark.training

# Mostly small ones, where one client matters most; from 13 on also in circles.
SIZES = [*range(2, 13)] * 4 + [*range(13, 25)] * 2 + [30, 40, 50, 60]
CHUNKS, CHUNK = 8, 1_250


@pytest.fixture(autouse=True)
def fresh_topologies() -> Iterator[None]:
    """Those of a defence that is taken out are not for others, here or in the next file."""
    topology.cache_clear()
    excess.cache_clear()
    yield
    topology.cache_clear()
    excess.cache_clear()


@pytest.mark.parametrize("seed", range(1, CHUNKS + 1))
def test_no_strategy_leaves_less_noise_than_planned(seed: int) -> None:
    tally = play(strategies=CHUNK, cohorts=SIZES, seed=seed)
    assert tally.broken == []
    # It does something: sums come out, circles are met, clients refuse, and what is counted on is just met.
    assert tally.came_out > 0.1 * CHUNK
    assert tally.circles > 0.1 * CHUNK
    assert tally.refused > CHUNK
    assert tally.margin == 0


def played(*, strategies: int = CHUNKS * CHUNK, seed: int = 1) -> Tally:
    """As much as the test above plays, at most."""
    return play(strategies=strategies, cohorts=SIZES, seed=seed, stop_when_broken=True)


def test_finds_deliveries_that_nobody_compares(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without confirmed sharers: some neighbours are hidden from a client, the others lost to everybody else."""
    monkeypatch.setattr(SecureClient, "_check_confirmed", lambda *_: None)
    assert played().broken


def test_finds_a_quorum_without_liars(monkeypatch: pytest.MonkeyPatch) -> None:
    """A quorum of n // 2 + 1: a colluder signs two sets of survivors."""
    monkeypatch.setattr(Tolerance, "liars", Tolerance.colluders)
    assert played().broken


def test_finds_a_second_signature(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that signs every set that it is shown."""
    right = SecureClient.agree

    def forgetful(self: SecureClient, survivors: bytes) -> bytes:
        self._state = dataclasses.replace(self._state, agreed=None)
        return right(self, survivors)

    monkeypatch.setattr(SecureClient, "agree", forgetful)
    assert played().broken


def test_finds_too_few_survivors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients that do not count the survivors."""
    monkeypatch.setattr(SecureClient, "_check_survivors", lambda *_: None)
    assert played().broken


class Cut(Attack):
    """Loses two whole runs on either side of 20 clients of a circle, and nobody else."""

    _tampered = 0.0

    def _replay(self) -> None:
        return

    def _deliver(self) -> frozenset[int]:
        sharers = frozenset(self._of.shared)
        for client in self._clients:
            self._mask(client, sharers)
        return sharers

    def _sets(self, sharers: frozenset[int]) -> list[messages.Survivors]:
        standing, length = self._roster.circle, self._shape.degree // 2
        lost = {*standing[:length], *standing[length + 20 : 2 * length + 20]}
        alive, gone = tuple(sorted(sharers - lost)), tuple(sorted(sharers & lost))
        return [messages.Survivors(roster=self._roster.digest, survivors=alive, lost=gone)]


@pytest.mark.parametrize("defended", [True, False])
def test_a_circle_is_cut_only_without_its_rule(defended: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """300 clients: 39 may be lost, 34 in the right places are two runs. Without the rule 20 clients come out alone."""
    if not defended:
        monkeypatch.setattr("gdpfed.secure.client.fewest_in_two_runs", lambda *_, **__: 10**6)
    tolerance = Tolerance(dropout_rate=0.1, colluding_fraction=0.05)
    shape = topology(300, tolerance)
    assert (shape.degree, shape.dropouts) == (34, 39)
    world = World(size=300, num_params=1, tolerance=tolerance, seed=5)
    at = next(
        made
        for made in (prepared(world, np.random.default_rng(seed)) for seed in range(20))
        if len(made.rosters) == 1 and len(made.rosters[0].shared) == 300
    )
    learnt = Cut(at, at.rosters[0], np.random.default_rng(1)).run()
    assert learnt.is_broken == (not defended)
    if not defended:
        assert learnt.fewest is not None
        assert learnt.fewest <= 20
