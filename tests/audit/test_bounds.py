"""Statements about exact distributions, with their error rates."""

import dp_accounting
import numpy as np
import pytest
from scipy import stats

from gdpfed.audit.bounds import ScoredCanaries, clopper_pearson, epsilon_from_rates, judge
from gdpfed.audit.privacy_curves import PrivacyCurve, gaussian_delta
from gdpfed.errors import InputError


class Shifted:
    """Telling N(shift, 1) from N(0, 1), the shift over the fraction of the noise."""

    def __init__(self, shift: float) -> None:
        self.shift = shift

    def curve(self, fraction: float) -> PrivacyCurve:
        epsilons = np.linspace(0, 12, 241)
        return PrivacyCurve(epsilons=epsilons, deltas=gaussian_delta(epsilons, self.shift / fraction))

    def epsilon(self, fraction: float) -> float:
        return 0.0 if self.shift == 0 else float(dp_accounting.get_epsilon_gaussian(fraction / self.shift, 0.01))


class Nothing:
    """The claim that nobody can tell anything."""

    def curve(self, fraction: float) -> PrivacyCurve:  # noqa: ARG002
        return PrivacyCurve(epsilons=np.zeros(1), deltas=np.zeros(1))

    def epsilon(self, fraction: float) -> float:  # noqa: ARG002
        return 0.0


def drawn(num: int, shift: float, seed: int) -> ScoredCanaries:
    generator = np.random.default_rng(seed)
    inside = np.arange(num) < num // 2
    return ScoredCanaries(
        scores={"sum": generator.standard_normal(num) + shift * inside},
        inside=inside,
        choose=np.arange(num) % 2 == 0,
    )


@pytest.mark.training
@pytest.mark.parametrize("total", [1, 7, 50, 400])
@pytest.mark.parametrize("alpha", [0.2, 1e-3])
def test_clopper_pearson_covers(total: int, alpha: float) -> None:
    """Exactly, by the binomial distribution, for probabilities all over."""
    counts = np.arange(total + 1)
    lower, upper = clopper_pearson(counts, total, alpha=alpha)
    for chance in np.concatenate([np.geomspace(1e-4, 0.5, 25), 1 - np.geomspace(0.5, 1e-4, 25)]):
        weights = stats.binom.pmf(counts, total, chance)
        assert weights[lower > chance].sum() <= alpha * (1 + 1e-9)
        assert weights[upper < chance].sum() <= alpha * (1 + 1e-9)
    assert lower[0] == 0
    assert upper[-1] == 1


def test_clopper_pearson_is_scipys() -> None:
    exact = stats.binomtest(7, 90).proportion_ci(0.9, method="exact")
    lower, upper = clopper_pearson(7, 90, alpha=0.05)
    assert (float(lower), float(upper)) == pytest.approx((exact.low, exact.high), rel=1e-9)


@pytest.mark.training
@pytest.mark.parametrize("seed", range(4))
def test_epsilon_lower_is_below_the_truth(seed: int) -> None:
    """At a shift of 1 and delta = 0.01 the best threshold gives exactly the Gaussian epsilon; 400,000 canaries come
    within 20 % of it, and not above."""
    truth = float(dp_accounting.get_epsilon_gaussian(1.0, 0.01))
    found = judge(drawn(400_000, 1.0, seed), Shifted(1.0), claim=truth, delta=0.01, alpha=1e-3)
    assert 0.8 * truth < found.epsilon_lower <= truth
    assert not found.contradicts
    assert 1.0 < (found.noise_at_most or 0) < 1.12
    assert 0.8 * truth < found.curve_lower <= truth


def test_too_little_noise_contradicts_the_curve_before_the_epsilon() -> None:
    """20,000 canaries, three quarters of the noise: no epsilon is exceeded, but the curve does not allow it."""
    claim = float(dp_accounting.get_epsilon_gaussian(1.0, 1e-5))
    canaries = drawn(20_000, 1 / 0.75, 5)
    found = judge(canaries, Shifted(1.0), claim=claim, delta=1e-5, alpha=1e-3)
    assert found.epsilon_lower < claim
    assert found.curve_contradicted
    assert found.contradicts
    assert 0.75 < (found.noise_at_most or 0) < 1.0


@pytest.mark.training
def test_choice_costs_no_confidence() -> None:
    """Forty scores of pure noise, 40 times, at alpha = 0.1: a claim that nothing at all can be told is refuted in fewer
    than 15 (a probability below 1e-5 if each errs with 0.1). Chosen and judged on the same canaries, it is in two of
    three."""
    generator = np.random.default_rng(1)
    inside = np.arange(200) < 100
    wrong = {"another half": 0, "the same half": 0}
    for _ in range(40):
        scores = {str(place): row for place, row in enumerate(generator.standard_normal((40, 200)))}
        again = {name: np.repeat(row[::2], 2) for name, row in scores.items()}
        for name, made in (("another half", scores), ("the same half", again)):
            canaries = ScoredCanaries(scores=made, inside=inside, choose=np.arange(200) % 2 == 0)
            found = judge(canaries, Nothing(), claim=0.0, delta=0.0, alpha=0.1, measure_noise=False)
            wrong[name] += found.contradicts
    assert wrong["another half"] < 15
    assert float(stats.binom.sf(14, 40, 0.1)) < 1e-5
    assert wrong["the same half"] > 15


def test_epsilon_of_rates() -> None:
    assert float(epsilon_from_rates(0.5, 0.05, delta=0.0)) == pytest.approx(np.log(10))
    assert float(epsilon_from_rates(0.05, 0.1, delta=0.0)) == 0
    assert float(epsilon_from_rates(0.01, 0.001, delta=0.02)) == 0


def test_both_worlds_are_tried() -> None:
    """A test that is sure of absence: scores outside that never occur inside."""
    inside = np.arange(2000) < 1000
    scores = np.where(inside, 0.0, (np.arange(2000) % 5 == 0) * -1.0)
    canaries = ScoredCanaries(scores={"s": scores}, inside=inside, choose=np.arange(2000) % 2 == 0)
    found = judge(canaries, Shifted(0.1), claim=0.1, delta=0.0, alpha=1e-3)
    assert found.contradicts
    assert found.epsilon_lower > 1


def test_too_few_canaries_are_refused() -> None:
    with pytest.raises(InputError, match="both halves"):
        ScoredCanaries(scores={}, inside=np.ones(4, dtype=bool), choose=np.arange(4) % 2 == 0)
