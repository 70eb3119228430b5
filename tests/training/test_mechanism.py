"""Clip and noise."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from gdpfed.training import mechanism
from tests.training.checkers import variance_window


def clip(updates: Tensor, *, clip_norm: float) -> Tensor:
    bounded, _ = mechanism.clip(updates, clip_norm=clip_norm)
    return bounded


def rows(*shape: int, seed: int = 0) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape))


def exact_norm(row: Tensor) -> float:
    """Without rounding in the sum."""
    return math.sqrt(math.fsum(value * value for value in row.tolist()))


@pytest.mark.parametrize("clip_norm", [1e-9, 0.3, 1.0, 7.7, 1e9])
@pytest.mark.parametrize("size", [1e-6, 1.0, 1e12, 1e100])
def test_clipped_norm_is_bounded(clip_norm: float, size: float) -> None:
    updates = rows(20, 1001) * size
    for before, row in zip(updates, clip(updates, clip_norm=clip_norm), strict=True):
        assert exact_norm(row) <= clip_norm * (1 + 1e-12)
        if exact_norm(before) > clip_norm:
            assert exact_norm(row) >= clip_norm * (1 - 1e-12)
            torch.testing.assert_close(row / clip_norm, before / exact_norm(before), rtol=1e-9, atol=0)


def test_clipped_norm_is_bounded_at_the_edge() -> None:
    """Norms one unit in the last place around the bound."""
    direction = rows(1, 1000)
    unit = direction / exact_norm(direction[0])
    for factor in (1 - 1e-15, 1.0, 1 + 1e-16, 1 + 1e-15, 1 + 1e-13):
        (row,) = clip(unit * factor, clip_norm=1.0)
        assert exact_norm(row) <= 1 + 1e-12


def test_short_updates_are_untouched() -> None:
    updates = rows(5, 300)
    for clip_norm in (100.0, math.inf):
        assert torch.equal(clip(updates, clip_norm=clip_norm), updates)
    assert torch.equal(clip(torch.zeros(2, 4).double(), clip_norm=1.0), torch.zeros(2, 4).double())
    mixed = torch.cat([updates[:1] * 1e-3, updates[1:]])
    assert torch.equal(clip(mixed, clip_norm=1.0)[0], mixed[0])


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 1e200, -1e308])
@pytest.mark.parametrize("clip_norm", [1.0, math.inf])
def test_non_finite_becomes_zero(bad: float, clip_norm: float) -> None:
    updates = rows(3, 50)
    expected = clip(updates, clip_norm=clip_norm)
    updates[1, 7] = bad
    bounded = clip(updates, clip_norm=clip_norm)
    assert torch.equal(bounded[1], torch.zeros(50).double())
    assert torch.equal(bounded[0], expected[0])
    assert torch.equal(bounded[2], expected[2])


def test_clip_leaves_its_argument_alone() -> None:
    updates = rows(3, 50)
    kept = updates.clone()
    clip(updates, clip_norm=0.1)
    assert torch.equal(updates, kept)


def test_norms_are_each_rows_own() -> None:
    """Long enough to be shared among threads, and for rounding to add up in a plain sum."""
    updates = rows(4, 2_000_001)
    before = torch.get_num_threads()
    try:
        found = []
        for threads in (1, 2):
            torch.set_num_threads(threads)
            found.append(mechanism.norms(updates))
            found.append(torch.cat([mechanism.norms(row.unsqueeze(0)) for row in updates]))
            found.append(torch.cat([mechanism.norms(updates[:3]), mechanism.norms(updates[3:])]))
    finally:
        torch.set_num_threads(before)
    for other in found[1:]:
        assert torch.equal(found[0], other)
    assert float(found[0][0]) == pytest.approx(exact_norm(updates[0]), rel=5e-16)


def test_noise_has_the_planned_std() -> None:
    """2,000,000 coordinates: within 0.5 % of the variance at a false-alarm rate of 1e-6."""
    drawn = mechanism.noise(2_000_000, std=0.37, seed=5, round_number=3, place=1)
    low, high = variance_window(len(drawn))
    assert low <= float((drawn / 0.37).square().mean()) <= high
    assert drawn.dtype == torch.float64
    assert torch.equal(drawn, mechanism.noise(2_000_000, std=0.37, seed=5, round_number=3, place=1))
