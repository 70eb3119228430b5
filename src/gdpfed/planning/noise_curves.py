"""Noise as a smooth function of epsilon or of the sampling rate, for choosing groups and rates.

Place: between calibration and the choices that ask for many noise multipliers. A dozen rough calibrations, joined by a
monotone cubic in the logarithms. What is chosen with a curve is then calibrated properly, so a curve's error can cost
utility, never privacy.

Guarantees (tests of the same name):
  curves_are_close      within 0.2 % of the calibrated noise multiplier between the nodes.
"""

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from gdpfed.privacy.accountant import Accountant
from gdpfed.privacy.calibrate import rough_noise_multiplier

__all__ = ["NoiseCurve", "noise_by_epsilon", "noise_by_rate"]

FloatArray = NDArray[np.float64]
NoiseCurve = Callable[[FloatArray], FloatArray]

# As many rough calibrations as keep the error below 0.2 %; RDP takes ten times as long for each.
_NODES: dict[Accountant, int] = {"pld": 13, "rdp": 9}


def _curve(nodes: FloatArray, noise: FloatArray) -> NoiseCurve:
    if len(nodes) == 1:
        return lambda values: np.full(np.shape(values), noise[0])
    from scipy import interpolate

    joined = interpolate.PchipInterpolator(np.log(nodes), np.log(noise), extrapolate=True)
    return lambda values: np.exp(joined(np.log(values)))


def _nodes(low: float, high: float, accountant: Accountant) -> FloatArray:
    # Bounds that differ by rounding alone would give nodes that coincide.
    is_one = math.isclose(low, high, rel_tol=1e-9)
    return np.array([low]) if is_one else np.geomspace(low, high, _NODES[accountant])


def noise_by_epsilon(
    *, low: float, high: float, delta: float, sampling_rate: float, num_rounds: int, accountant: Accountant
) -> NoiseCurve:
    """The noise multiplier as a function of epsilon between ``low`` and ``high``."""
    nodes = _nodes(low, high, accountant)
    noise = [
        rough_noise_multiplier(
            epsilon=float(epsilon),
            delta=delta,
            sampling_rate=sampling_rate,
            num_rounds=num_rounds,
            accountant=accountant,
        )
        for epsilon in nodes
    ]
    return _curve(nodes, np.array(noise))


def noise_by_rate(
    *, low: float, high: float, epsilon: float, delta: float, num_rounds: int, accountant: Accountant
) -> NoiseCurve:
    """The noise multiplier as a function of the sampling rate between ``low`` and ``high``."""
    nodes = _nodes(low, high, accountant)
    noise = [
        rough_noise_multiplier(
            epsilon=epsilon,
            delta=delta,
            sampling_rate=min(float(rate), 1.0),
            num_rounds=num_rounds,
            accountant=accountant,
        )
        for rate in nodes
    ]
    return _curve(nodes, np.array(noise))
