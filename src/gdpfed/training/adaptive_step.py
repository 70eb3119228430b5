"""How far the server steps, found from what was released.

Place: between the combined sums and the model's update, in plans with `adaptive_step`. Only released sums and models
made of them are read: post-processing, which costs no privacy.

An average of the models lags behind the newest one. Where a new update goes on in that direction, steps were too short;
where it turns back, they were too long, be it that the minimum was overshot or that the noise of past steps is being
undone. The agreement is measured in units of what the noise alone would make of it,

    z = <update, model - average> / (noise std of the update * |model - average|)

which is standard normal if there is nothing but noise. The step is multiplied by exp(tanh(z / 2) / 2): by 1.65 at most,
by 0.61 at least. The first step is a small part of the model's length. Of normalised updates the clip norm is only the
unit that steps are measured in: another clip norm gives the same models, up to rounding.

Guarantees (tests of the same name):
  agreement_is_standard_normal    of updates that are noise alone.
  steps_grow_and_shrink           towards what descends fastest, from starts that are far too short.
  another_unit_another_nothing    the clip norm of normalised updates changes no model but by rounding.
  a_lost_step_is_refused          after the first round there is one, or an error: it is not begun anew.
"""

import math

import numpy as np
from torch import Tensor

from gdpfed.errors import InputError
from gdpfed.planning.plan import Plan

__all__ = ["agreement", "next_step"]

# Of the model's length, or of 1 where the model is shorter: many dense layers start at zero.
_FIRST = 0.05


def next_step(
    plan: Plan, update: Tensor, *, parameters: Tensor, average: Tensor | None, step: float | None, round_number: int
) -> float:
    """The factor on this round's ``update``, given the last one's, the model and the average so far."""
    if step is None:
        if round_number:
            raise InputError(
                f"expected the step of {round_number} rounds in the checkpoint, got none: start the run again in a new "
                f"folder, or restore the checkpoint"
            )
        return _FIRST * max(1.0, _length(parameters.double())) / plan.clip_norm
    assert average is not None  # noqa: S101 - a plan that adapts has one
    z = agreement(update, parameters.double() - average, noise_std=noise_std(plan))
    return step * math.exp(math.tanh(z / 2) / 2)


def agreement(update: Tensor, lag: Tensor, *, noise_std: float) -> float:
    """How far the update goes in the direction of ``lag``, in stds of the noise; 0 where there is no direction."""
    length = _length(lag)
    return float(np.multiply(update.numpy(), lag.numpy()).sum()) / (noise_std * length) if length > 0 else 0.0


def noise_std(plan: Plan) -> float:
    """Of each coordinate of the combined update, before Top-k."""
    sums = plan.groups[:1] if plan.release == "pooled" else plan.groups
    return plan.server_learning_rate * math.hypot(*(group.weight * group.noise_std for group in sums))


def _length(vector: Tensor) -> float:
    return float(np.sqrt(np.square(vector.numpy()).sum()))
