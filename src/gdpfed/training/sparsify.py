"""Keep the largest coordinates of a noisy sum.

Place: after the noise, before the weighted update. Post-processing, so it costs no privacy; before the noise it would.

Guarantees (tests of the same name):
  keeps_exactly_k     the result has min(num_kept, nonzeros) nonzero coordinates, ties broken by lowest index.
  keeps_the_largest   every kept magnitude >= every dropped one.
  identity_when_full  num_kept == len(values) returns the values unchanged.
"""

import torch
from torch import Tensor

from gdpfed.errors import expect

__all__ = ["keep_largest"]


def keep_largest(values: Tensor, *, num_kept: int) -> Tensor:
    """Zeroes all but the ``num_kept`` largest-magnitude entries of ``values`` (params,)."""
    expect(0 <= num_kept <= len(values), f"num_kept between 0 and {len(values)}", num_kept=num_kept)
    if num_kept == len(values):
        return values
    if num_kept == 0:
        return torch.zeros_like(values)
    magnitudes = values.abs()
    threshold = torch.kthvalue(magnitudes, len(values) - num_kept + 1).values
    above = magnitudes > threshold
    # Equal to the threshold: the first ones, until the number is met.
    ties = torch.nonzero(magnitudes == threshold).flatten()[: num_kept - int(above.sum())]
    above[ties] = True
    return torch.where(above, values, torch.zeros_like(values))
