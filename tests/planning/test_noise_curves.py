import numpy as np
import pytest

from gdpfed.planning.noise_curves import noise_curve
from gdpfed.privacy.accountant import Accountant
from gdpfed.privacy.calibrate import noise_multiplier_for, rough_noise_multiplier


@pytest.mark.training
@pytest.mark.parametrize(("accountant", "tolerance"), [("pld", 0.002), ("rdp", 0.03)])
def test_curves_are_close(accountant: Accountant, tolerance: float) -> None:
    """To 0.2 % by PLD. RDP has kinks where its best order changes, and its rough search has fewer orders."""
    common = {"delta": 1e-5, "num_rounds": 50, "accountant": accountant}
    by_epsilon = noise_curve(
        lambda epsilon: rough_noise_multiplier(epsilon=epsilon, sampling_rate=0.05, **common),  # type: ignore[arg-type]
        low=0.3,
        high=10.0,
        accountant=accountant,
    )
    by_rate = noise_curve(
        lambda rate: rough_noise_multiplier(epsilon=1.0, sampling_rate=rate, **common),  # type: ignore[arg-type]
        low=0.004,
        high=0.3,
        accountant=accountant,
    )
    for epsilon in (0.37, 0.9, 2.2, 7.7):
        exact = noise_multiplier_for(epsilon=epsilon, sampling_rate=0.05, **common)  # type: ignore[arg-type]
        assert float(by_epsilon(np.array([epsilon]))[0]) == pytest.approx(exact, rel=tolerance)
    for rate in (0.005, 0.021, 0.09, 0.25):
        exact = noise_multiplier_for(epsilon=1.0, sampling_rate=rate, **common)  # type: ignore[arg-type]
        assert float(by_rate(np.array([rate]))[0]) == pytest.approx(exact, rel=tolerance)


def test_a_single_budget_is_a_constant() -> None:
    curve = noise_curve(lambda epsilon: 3 * epsilon, low=1.0, high=1.0 + 1e-12, accountant="pld")
    assert np.ptp(curve(np.array([1.0, 1.0]))) == 0
