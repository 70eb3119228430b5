"""What is printed is never better than what is."""

import math
from decimal import Decimal

from hypothesis import given
from hypothesis import strategies as st

from gdpfed.privacy.rounding import allowance, delta_up, promise, rounded_up


@given(st.floats(min_value=1e-9, max_value=1e6), st.integers(min_value=0, max_value=6))
def test_rounding_never_flatters(value: float, digits: int) -> None:
    exact = Decimal(value)
    shown = Decimal(rounded_up(value, digits))
    assert exact <= shown < exact + Decimal(1).scaleb(-digits)
    assert Decimal(promise(value)) >= Decimal(repr(value))
    assert Decimal(promise(value)) < Decimal(repr(value)) + Decimal("0.0001")
    if value < 1:
        delta = Decimal(delta_up(value))
        assert Decimal(repr(value)) <= delta <= Decimal(repr(value)) * Decimal("1.01")


@given(value=st.floats(1e-9, 1e9), digits=st.integers(2, 9))
def test_an_allowance_is_never_overstated(value: float, digits: int) -> None:
    exact, shown = Decimal(repr(value)), Decimal(allowance(value, digits))
    assert exact * (1 - Decimal(10) ** (1 - digits)) < shown <= exact
    assert [allowance(known) for known in (3.0, 2.9999999, 0.1, 1e-5, 12345678.0)] == [
        "3", "2.99999", "0.1", "1e-05", "1.23456e+07"
    ]  # fmt: skip


def test_promises_read_as_they_were_stated() -> None:
    assert [promise(value) for value in (0.1, 0.5, 12.0, 1.50001, math.inf)] == ["0.1", "0.5", "12", "1.5001", "none"]
    assert [delta_up(value) for value in (6.982864657330156e-05, 9.999e-5, 0.01)] == ["6.99e-05", "1e-04", "1e-02"]
