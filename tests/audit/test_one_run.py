"""One training's estimators against exact distributions."""

import numpy as np
import pytest
from scipy import stats

from gdpfed.audit.one_run import curve_rules_out, judge_one_run, plain_p_value
from gdpfed.audit.privacy_curves import PrivacyCurve
from gdpfed.errors import InputError
from tests.audit.test_bounds import Shifted

pytestmark = pytest.mark.training


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("guesses", [20, 150])
def test_curve_bound_holds_for_randomised_response(epsilon: float, guesses: int) -> None:
    """Each bit told truly with e^epsilon / (1 + e^epsilon): right guesses are binomial, and no mechanism has more."""
    curve = PrivacyCurve(epsilons=np.array([epsilon]), deltas=np.zeros(1))
    chance = 1 / (1 + np.exp(-epsilon))
    for wanted in (0.1, 1e-2, 1e-4):
        right = int(stats.binom.isf(wanted, guesses, chance))
        exact = float(stats.binom.sf(right - 1, guesses, chance))
        given = {"num_canaries": guesses, "num_guesses": guesses, "num_right": right}
        assert not curve_rules_out(curve, **given, probability=exact * (1 - 1e-9))
        assert curve_rules_out(curve, **given, probability=1.4 * exact)


def test_plain_bound_at_delta_zero_is_binomial() -> None:
    for right in (40, 60, 75):
        given = {"num_canaries": 500, "num_guesses": 80, "num_right": right}
        exact = stats.binom.sf(right - 1, 80, 1 / (1 + np.exp(-0.7)))
        assert plain_p_value(**given, epsilon=0.7, delta=0.0) == pytest.approx(exact, rel=1e-12)
        assert plain_p_value(**given, epsilon=0.7, delta=1e-6) >= exact


def played(shift: float, seed: int, num: int = 1000) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    inside = generator.random(num) < 0.5
    return generator.standard_normal(num) + shift * inside, inside


def test_one_run_rarely_errs() -> None:
    """At alpha = 0.2, forty games of 300 canaries: fewer than 20 errors (a probability of 2e-5 if each erred with
    0.2)."""
    wrong = 0
    for seed in range(40):
        found = judge_one_run(*played(0.8, seed, 300), Shifted(0.8), claim=9.0, delta=1e-5, alpha=0.2)
        wrong += found.contradicts
    assert wrong < 20
    assert float(stats.binom.sf(19, 40, 0.2)) < 3e-5


@pytest.mark.parametrize("shift", [0.5, 1.0])
def test_one_run_sees_missing_noise(shift: float) -> None:
    """A fifth of the noise is flagged, all of it is not; what is left is bounded."""
    for seed in range(3):
        broken = judge_one_run(*played(5 * shift, seed), Shifted(shift), claim=20.0, delta=1e-5, alpha=1e-3)
        assert broken.contradicts
        assert 0.2 < (broken.noise_at_most or 9) <= 1
        sound = judge_one_run(*played(shift, seed), Shifted(shift), claim=20.0, delta=1e-5, alpha=1e-3)
        assert not sound.contradicts
        assert sound.curve_lower <= sound.curve_claim


def test_no_noise_refutes_a_plain_epsilon() -> None:
    found = judge_one_run(*played(1e3, 1), Shifted(0.5), claim=1.0, delta=1e-6, alpha=1e-3)
    assert found.epsilon_lower > 3


def test_too_few_canaries_are_refused() -> None:
    with pytest.raises(InputError, match="20 canaries"):
        judge_one_run(np.zeros(5), np.zeros(5, dtype=bool), Shifted(1.0), claim=1.0, delta=0.0, alpha=0.1)
