"""The checkers of secure sums, pointed at known-wrong code: each mistake must be caught by something."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from gdpfed.secure import noise_shares, randomness
from gdpfed.secure.encoding import ClientEncoding
from gdpfed.secure.noise_shares import NoiseShare, Tolerance
from tests.secure import test_encoding
from tests.secure.cohorts import World
from tests.training import test_secure_sums
from tests.training.checkers import check_noise
from tests.training.worlds import plan_of


def half_of_it(**asked: Any) -> NoiseShare:
    """1/r for 1/sqrt(r)."""
    right = noise_shares.noise_share(**asked)
    return NoiseShare(cohort=right.cohort, dropouts=0, colluders=0, variance=max(100, right.variance // right.cohort))


def a_variance_too_many(**asked: Any) -> NoiseShare:
    """Each client adds all of the noise."""
    right = noise_shares.noise_share(**asked)
    return NoiseShare(cohort=right.cohort, dropouts=0, colluders=0, variance=asked["total_variance"])


@pytest.mark.parametrize("mistake", [half_of_it, a_variance_too_many])
def test_wrong_shares_are_caught(mistake: Callable[..., NoiseShare], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gdpfed.secure.client.noise_share", mistake)
    plan = plan_of("dp-fedavg")
    with pytest.raises(AssertionError, match="variance"):
        check_noise(test_secure_sums.secure_mechanism, plan, [plan.groups[0].noise_std])


def test_one_stream_for_everyone_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same noise on all clients adds up: n times the std of one, not sqrt(n)."""
    right = randomness.SimulatedRandomness.stream

    def shared(self: Any, purpose: str) -> Any:
        if purpose == "noise":
            return right(randomness.SimulatedRandomness(seed=1, round_number=0, client=0), purpose)
        return right(self, purpose)

    monkeypatch.setattr(randomness.SimulatedRandomness, "stream", shared)
    plan = plan_of("dp-fedavg")
    with pytest.raises(AssertionError):
        check_noise(test_secure_sums.secure_mechanism, plan, [plan.groups[0].noise_std])


def test_shares_without_dropouts_are_caught() -> None:
    """Sized for the whole cohort: with one lost there is too little."""
    tolerance = Tolerance(dropout_rate=0.1)
    sized = noise_shares.noise_share(total_variance=10**8, cohort=20, tolerance=Tolerance(), num_params=10)
    assert (20 - tolerance.dropouts(20)) * sized.variance < 10**8


def rounded(update: Any, made: ClientEncoding) -> NDArray[np.int64]:
    """To the nearest grid step: longer than the bound."""
    values = np.asarray(update, dtype=np.float64)
    norm = math.sqrt(float(values @ values)) or 1.0
    return np.round(values * min(1.0, made.clip_norm / norm) / made.unit).astype(np.int64)


def stretched(update: Any, made: ClientEncoding) -> NDArray[np.int64]:
    """Away from zero."""
    values = rounded(update, made)
    return values + np.sign(values)


@pytest.mark.parametrize("mistake", [rounded, stretched])
def test_wrong_encodings_are_caught(mistake: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(test_encoding, "encode", mistake)
    with pytest.raises(AssertionError):
        test_encoding.test_integer_norm_never_exceeds_the_bound()


def test_a_nan_that_switches_clipping_off_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(update: Any, made: ClientEncoding) -> NDArray[np.int64]:
        values = np.asarray(update, dtype=np.float64)
        with np.errstate(all="ignore"):
            factor = min(1.0, made.clip_norm / float(np.sqrt(values @ values)))
            return np.nan_to_num(values * factor / made.unit).astype(np.int64)

    monkeypatch.setattr(test_encoding, "encode", wrong)
    with pytest.raises(AssertionError):
        test_encoding.test_bad_values_become_zero(np.append(np.ones(39), np.nan))


def test_masks_that_do_not_cancel_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(size=3)
    expected = world.plain_sum(range(3), 3)
    assert np.array_equal(world.run(), expected)
    monkeypatch.setattr(
        "gdpfed.secure.masks.add_pair_mask",
        lambda vector, key, **_: np.add(vector, int.from_bytes(key[:4], "little"), out=vector),
    )
    assert not np.array_equal(world.run(), expected)
