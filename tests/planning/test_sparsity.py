import numpy as np
import pytest

from gdpfed.errors import InputError
from gdpfed.planning.sparsity import (
    check_keep_fractions,
    closed_form_keep_fractions,
    default_keep_fractions,
    noise_energy_kept,
)


def test_closed_form_is_the_papers() -> None:
    """By hand, eta = 0.1, tau = 5: mu_4 = 16.12, eta tau mu_4 = 8.06."""
    fractions = closed_form_keep_fractions(
        weights=(0.5, 0.5, 1.0),
        noise_multipliers=(2.0, 0.1, 100.0),
        expected_cohorts=(2.0, 10.0, 1.0),
        learning_rate=0.1,
        local_steps=5,
    )
    assert fractions[0] == pytest.approx(1 - 2 * 0.5 * 4 / (8.06 * 4))
    assert fractions[1] == pytest.approx(1 - 2 * 0.5 * 0.01 / (8.06 * 100))
    assert fractions[2] == 0.0


def test_closed_form_keeps_all_in_the_papers_setting() -> None:
    fractions = closed_form_keep_fractions(
        weights=(2e-4, 1.7e-3, 6.4e-3),
        noise_multipliers=(1.19, 0.93, 0.84),
        expected_cohorts=(13.8, 37.8, 68.4),
        learning_rate=0.1,
        local_steps=5,
    )
    assert min(fractions) > 0.99999


@pytest.mark.parametrize("fraction", [0.1, 0.5, 0.7, 0.9])
def test_largest_coordinates_hold_most_noise(fraction: float) -> None:
    """Against a draw of a million: four standard errors of the energy share are below 0.3 %."""
    noise = np.random.default_rng(1).standard_normal(1_000_000) ** 2
    kept = np.sort(noise)[::-1][: int(fraction * len(noise))].sum() / noise.sum()
    assert noise_energy_kept(fraction) == pytest.approx(kept, rel=5e-3)
    assert noise_energy_kept(fraction) > fraction


def test_ends_and_defaults() -> None:
    assert noise_energy_kept(1.0) == 1.0
    assert default_keep_fractions(3) == (0.7, 0.8, 0.9)
    assert default_keep_fractions(1) == (0.7,)
    assert default_keep_fractions(5) == pytest.approx((0.7, 0.75, 0.8, 0.85, 0.9))


def test_bad_input_is_refused() -> None:
    with pytest.raises(InputError, match="each of 3 groups"):
        check_keep_fractions((0.5,), 3)
    with pytest.raises(InputError, match="keep fraction"):
        check_keep_fractions((0.0, 1.0), 2)
