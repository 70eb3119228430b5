"""Numbers as text that never flatters.

Place: used by every output, hence below all of them. A cost is rounded up, so that what is printed is still a bound;
what somebody allows is rounded down; other numbers are rounded to nearest.

Guarantees (tests of the same name):
  rounding_never_flatters   a printed cost is at least the cost, and less than one unit of its last digit above it.
  an_allowance_is_never_overstated   a printed allowance is at most what is allowed.
"""

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal, localcontext

__all__ = ["allowance", "delta_up", "finite", "promise", "rounded_up"]


def finite(value: float) -> float | None:
    """For JSON, which has no infinity: no bound is null."""
    return None if math.isinf(value) else value


def _rounded(exact: Decimal, *, last: int, rounding: str) -> Decimal:
    """To a multiple of 10 ** ``last``."""
    with localcontext(prec=400):
        return exact.quantize(Decimal(1).scaleb(last), rounding=rounding)


def rounded_up(value: float, digits: int = 4) -> str:
    """A cost, never understated: 0.49991 is 0.5000 at four digits."""
    if math.isinf(value):
        return "infinite"
    return str(_rounded(Decimal(value), last=-digits, rounding=ROUND_CEILING))


def promise(value: float) -> str:
    """A budget as it was stated: 0.5, 12; rounded up at four digits."""
    if math.isinf(value):
        return "none"
    # What was written 0.1 is a little more than a tenth in binary: its shortest decimal is what was stated.
    text = format(_rounded(Decimal(repr(value)), last=-4, rounding=ROUND_CEILING), "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


def allowance(value: float, digits: int = 6) -> str:
    """What is allowed, never overstated, at so many significant digits: 2.9999999 is 2.99999, 3 is 3."""
    exact = Decimal(repr(value))
    rounded = _rounded(exact, last=exact.adjusted() - digits + 1, rounding=ROUND_FLOOR)
    return f"{float(rounded):.{digits}g}"


def delta_up(value: float, digits: int = 3) -> str:
    """A failure probability at so many significant digits: 6.9829e-05 is 6.99e-05."""
    exact = Decimal(repr(value))
    rounded = _rounded(exact, last=exact.adjusted() - digits + 1, rounding=ROUND_CEILING)
    mantissa, _, power = f"{rounded:.{digits - 1}e}".partition("e")
    mantissa = mantissa.rstrip("0").rstrip(".") if "." in mantissa else mantissa
    return f"{mantissa}e{int(power):+03d}"
