import numpy as np
import pytest

from gdpfed.planning.weights import (
    inverse_variance_weights,
    paper_weights,
    pooled_signal_to_noise,
    signal_to_noise,
    step_size,
)

COHORTS, NOISE = (12.0, 36.0, 72.0), (1.2, 0.9, 0.8)


def test_inverse_variance_is_best() -> None:
    best = inverse_variance_weights(COHORTS, NOISE)
    assert step_size(best, COHORTS) == pytest.approx(1.0)
    top = signal_to_noise(best, COHORTS, NOISE)
    assert top == pytest.approx(np.sqrt(((np.array(COHORTS) / np.array(NOISE)) ** 2).sum()))
    generator = np.random.default_rng(0)
    for _ in range(200):
        assert signal_to_noise(generator.uniform(0.01, 1, size=3), COHORTS, NOISE) <= top * (1 + 1e-12)


def test_paper_weights_hide_a_step() -> None:
    assert step_size(paper_weights((40.0, 40.0, 40.0)), (40.0, 40.0, 40.0)) == pytest.approx(1 / 3)
    printed = (0.0069 * 2000, 0.0189 * 2000, 0.0342 * 2000)
    assert step_size(paper_weights(printed), printed) == pytest.approx(0.498, abs=1e-3)


def test_one_group_is_fedavg() -> None:
    assert paper_weights((120.0,)) == (1 / 120,)
    assert inverse_variance_weights((120.0,), (0.7,)) == pytest.approx((1 / 120,))


def test_pooling_beats_separate_sums() -> None:
    pooled = pooled_signal_to_noise(COHORTS, NOISE)
    assert pooled == pytest.approx(10 + 40 + 90)
    assert pooled > signal_to_noise(inverse_variance_weights(COHORTS, NOISE), COHORTS, NOISE)
