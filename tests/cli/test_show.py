import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gdpfed.cli.show import rounded_up


@given(st.floats(1e-6, 1e6), st.integers(0, 6))
def test_an_epsilon_is_never_shown_too_small(value: float, digits: int) -> None:
    shown = rounded_up(value, digits)
    assert float(shown) >= value
    assert float(shown) <= value + 10.0**-digits * (1 + 1e-9) + value * 1e-12


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0.49991, "0.5000"), (0.5, "0.5000"), (0.50001, "0.5001"), (math.inf, "infinite"), (1e300, None)],
)
def test_examples(value: float, shown: str | None) -> None:
    assert shown is None or rounded_up(value) == shown
    assert shown is not None or float(rounded_up(value)) >= value
