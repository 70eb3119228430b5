"""Figures of the pages."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gdpfed.serve.figures import budget_bars, left_chart, mini_budgets


@settings(deadline=None, max_examples=100)
@given(st.lists(st.floats(min_value=1e-3, max_value=1e3), min_size=1, max_size=300))
def test_every_client_is_in_a_bar(values: list[float]) -> None:
    epsilons = np.array(values)
    bars = budget_bars(epsilons)
    assert sum(count for _, _, count in bars) == len(values)
    assert len(bars) <= 40
    assert bars[0][0] <= epsilons.min()
    assert bars[-1][1] >= epsilons.max()
    assert "nan" not in mini_budgets(epsilons)


@pytest.mark.parametrize("shares", [[], [0.0], [1.0], [0.2, 1.3, -0.1]])
def test_what_is_left_is_drawn(shares: list[float]) -> None:
    for wide in (True, False):
        drawn = left_chart(np.array(shares), wide=wide)
        assert drawn.count("<title>") == len({min(1.0, max(0.0, share)) for share in shares})
