"""Top-k."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gdpfed.errors import InputError
from gdpfed.training.sparsify import keep_largest

# Few different magnitudes, so that ties abound.
tied = st.lists(st.sampled_from([0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 0.5]), min_size=1, max_size=30)


def by_sorting(values: list[float], num_kept: int) -> list[float]:
    order = sorted(range(len(values)), key=lambda place: (-abs(values[place]), place))[:num_kept]
    return [value if place in order else 0.0 for place, value in enumerate(values)]


@settings(max_examples=200, deadline=None)
@given(tied, st.data())
def test_keeps_exactly_k(values: list[float], data: st.DataObject) -> None:
    num_kept = data.draw(st.integers(0, len(values)))
    kept = keep_largest(torch.tensor(values, dtype=torch.float64), num_kept=num_kept)
    assert int((kept != 0).sum()) == min(num_kept, sum(value != 0 for value in values))
    assert kept.tolist() == by_sorting(values, num_kept)


def test_keeps_the_largest() -> None:
    values = torch.from_numpy(np.random.default_rng(0).standard_normal(10_001))
    kept = keep_largest(values, num_kept=3_000)
    inside = kept != 0
    assert int(inside.sum()) == 3_000
    assert torch.equal(kept[inside], values[inside])
    assert values[inside].abs().min() >= values[~inside].abs().max()


def test_identity_when_full() -> None:
    values = torch.tensor([3.0, 0.0, -1.0])
    assert torch.equal(keep_largest(values, num_kept=3), values)


@pytest.mark.parametrize("num_kept", [-1, 4])
def test_impossible_numbers_are_refused(num_kept: int) -> None:
    with pytest.raises(InputError, match="between 0 and 3"):
        keep_largest(torch.ones(3), num_kept=num_kept)
