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

__all__ = ["NoiseCurve", "noise_curve"]

FloatArray = NDArray[np.float64]
NoiseCurve = Callable[[FloatArray], FloatArray]

# As many rough calibrations as keep the error below 0.2 %; RDP takes ten times as long for each.
_NODES: dict[Accountant, int] = {"pld": 13, "rdp": 9}


def noise_curve(noise_at: Callable[[float], float], *, low: float, high: float, accountant: Accountant) -> NoiseCurve:
    """``noise_at``, a rough calibration by this accountant, as a function of arrays between ``low`` and ``high``."""
    # Bounds that differ by rounding alone would give nodes that coincide.
    if math.isclose(low, high, rel_tol=1e-9):
        noise = noise_at(low)
        return lambda values: np.full(np.shape(values), noise)
    from scipy import interpolate

    nodes = np.geomspace(low, high, _NODES[accountant])
    noises = np.array([noise_at(float(node)) for node in nodes])
    joined = interpolate.PchipInterpolator(np.log(nodes), np.log(noises), extrapolate=True)
    return lambda values: np.exp(joined(np.log(values)))
