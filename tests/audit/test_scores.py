"""Scores against densities."""

import numpy as np
import pytest
from scipy import stats

from gdpfed.audit.scores import one_coin_scores, release_scores, repeat_scores, server_scores

SUMS = np.random.default_rng(3).normal(0.3, 1.2, (7, 11))


@pytest.mark.parametrize("rate", [0.01, 0.4, 1.0])
def test_release_score_is_the_likelihood_ratio(rate: float) -> None:
    outside = stats.norm.pdf(SUMS)
    inside = (1 - rate) * outside + rate * stats.norm.pdf(SUMS - 1 / 0.8)
    expected = np.log(inside.prod(axis=0) / outside.prod(axis=0))
    np.testing.assert_allclose(release_scores(SUMS, noise_multiplier=0.8, sampling_rate=rate), expected, rtol=1e-10)


def test_server_score_is_the_likelihood_ratio() -> None:
    taking_part = np.random.default_rng(4).random(SUMS.shape) < 0.4
    inside = stats.norm.pdf(SUMS - taking_part / 0.8)
    expected = np.log(inside.prod(axis=0) / stats.norm.pdf(SUMS).prod(axis=0))
    np.testing.assert_allclose(server_scores(SUMS, taking_part, noise_multiplier=0.8), expected, atol=1e-12)


@pytest.mark.parametrize("repeated", [[3, 8], list(range(12))])
def test_repeat_score_sees_equal_noise(repeated: list[int]) -> None:
    generator = np.random.default_rng(5)
    sums = generator.standard_normal((12, 400))
    sums[repeated] = sums[repeated[0]]
    moved = np.arange(400) % 4 == 0
    sums[repeated[1], moved] += 0.5
    scores = repeat_scores(sums, choose=np.arange(400) % 2 == 0)
    assert scores[moved].min() > 0.2
    assert scores[~moved].max() < 1e-12


def test_repeat_score_of_one_round_or_of_nothing_is_zero() -> None:
    assert not repeat_scores(np.ones((1, 5)), choose=np.ones(5, dtype=bool)).any()
    assert not repeat_scores(np.zeros((4, 5)), choose=np.ones(5, dtype=bool)).any()


def test_scores_of_a_rotation_are_likelihood_ratios() -> None:
    """Of the rounds for which a canary was asked, with a coin for each, or one for all."""
    noise, coin = 1.4, 0.3
    generator = np.random.default_rng(5)
    sums = generator.normal(size=(6, 5))
    asked = generator.random((6, 5)) < 0.6
    by_round = release_scores(sums, noise_multiplier=noise, sampling_rate=coin, asked=asked)
    once = one_coin_scores(sums, noise_multiplier=noise, sampling_rate=coin, asked=asked)
    for canary in range(5):
        seen = sums[asked[:, canary], canary]
        shifted, plain = stats.norm.pdf(seen, loc=1 / noise), stats.norm.pdf(seen)
        fresh = np.prod(((1 - coin) * plain + coin * shifted) / plain)
        assert by_round[canary] == pytest.approx(np.log(fresh))
        assert once[canary] == pytest.approx(np.log(1 - coin + coin * np.prod(shifted / plain)))
