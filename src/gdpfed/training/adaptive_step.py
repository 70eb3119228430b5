"""How far the server steps, found from what was released.

Place: between the combined sums and the model's update, in plans with `adaptive_step`. Only released sums and models
made of them are read: post-processing, which costs no privacy.

Everything rests on one number. Does a new update go on in a direction that was gone before, or does it turn back?

    z = <update, direction> / (noise std of the update * |direction|)

It is standard normal if there is nothing but noise, so beyond 3 either way it says something, in one look; of many
looks the same is true beyond 5.

1. **Search.** The direction is from the start to the model. The first step is a tenth of the model's length. As long
   as z is at least 3, the step grows by the root of ten, and with it all that was moved so far: nothing that short
   steps had learnt is lost. Where z is at most -3 before any step has grown, both shrink by as much, and as long as
   there was no such z, after each tenth of all rounds without evidence: so long a step may carry the model to where
   updates agree on nothing. In between more updates are needed. Once a step has grown, a z below 3 says that it went
   too far: the turn lies between it and the one before, where a line between the two z (over the logarithm of the
   step) crosses 0. Of a step that had failed before, a z of less than half of the last one says enough: the turn is
   the one before. An update that says so was made too far out, and is not used.
2. **Train.** The way to the turn is as long as the k updates since the step last shrank, each a turn's step long. All
   rounds together may go ten such ways, or z of them where the z before the turn was larger: the clearer the signal,
   the less noise is in a step. So the step is k turns times max(10, z) / rounds, and at most half the way. From now on
   two z are looked at. Along the way from the start it says whether all that was learnt should go on: beyond 5 the step
   grows. Along the way from the average of the models it says whether the model swings around: below -5 the step
   shrinks. By exp(tanh(excess / 4) / 2), so by the root of e at most. Where noise alone could have made z, the step
   stays.

Of normalised updates the clip norm is only the unit that steps are measured in: another clip norm gives the same
models, up to rounding. So neither a clip norm nor a step has to be chosen.

Guarantees (tests of the same name):
  agreement_is_standard_normal    of updates that are noise alone.
  the_search_finds_any_scale      a target a thousand times as far, or as near, is found as well.
  only_what_was_released_is_read  the start and the released sums give all steps and models again, to the bit.
  nothing_is_lost_in_the_search   what short steps moved is scaled with the step.
  steps_move_on_evidence_alone    a z that noise may make changes no step; beyond it, by the root of e at most.
  noise_ends_no_search            without a signal the model stays as near to where it began as first steps reach.
  a_drowned_signal_is_found       where the first steps carry the model to where updates agree on nothing.
  another_unit_another_nothing    the clip norm of normalised updates changes no model but by rounding.
  a_lost_step_is_refused          after the first round there is one, or an error: it is not begun anew.
"""

import dataclasses
import math
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from gdpfed.errors import InputError
from gdpfed.planning.plan import Plan

__all__ = ["Step", "agreement", "next_step", "noise_std"]

# Of the model's length, or of 1 where the model is shorter: many dense layers start at zero.
_FIRST, _LONGEST = 0.1, 100.0
_GROWTH = math.sqrt(10)
# In stds of what noise makes: in the search, and in each of the many rounds after it.
_EVIDENCE, _STRONG = 3.0, 5.0
# Of all rounds, and in updates: what one step may go on for without evidence.
_PATIENCE, _FEWEST = 0.1, 3
# Of the way from the start to the turn: how often all rounds together may go it, and how much of it one step may go.
_WAYS, _AT_ONCE = 10.0, 0.5


@dataclass(frozen=True, kw_only=True)
class Step:
    """The factor on an update. ``agreed``: while the search goes on, z before the step last grew. ``found_in``: the
    round that ended the search. ``failed``: the length that it last shrank from, in round ``shrunk_in``; by a z that
    said so if ``has_turned``."""

    length: float
    agreed: float | None = None
    found_in: int | None = None
    failed: float | None = None
    shrunk_in: int = 0
    has_turned: bool = False

    @property
    def is_found(self) -> bool:
        """Whether the search has ended."""
        return self.found_in is not None


def next_step(
    plan: Plan,
    update: Tensor,
    *,
    parameters: Tensor,
    start: Tensor,
    average: Tensor | None,
    step: Step | None,
    round_number: int,
    noise_excess: float = 1.0,
) -> tuple[Step, Tensor]:
    """The step, and what this round's ``update`` moves the model by, given the last step and what was moved so far.

    ``average`` is that of the models since the search ended. ``noise_excess``: of secure sums, whose noise is sized for
    what may be lost.
    """
    unit = max(1.0, _length(start.double())) / plan.clip_norm
    if step is None:
        if round_number:
            raise InputError(
                f"expected the step of {round_number} rounds in the checkpoint, got none: start the run again in a new "
                f"folder, or restore the checkpoint"
            )
        return _straight(Step(length=_FIRST * unit), update)
    noise, moved = noise_excess * noise_std(plan), parameters.double() - start.double()
    z = agreement(update, moved, noise_std=noise)
    if step.is_found:
        assert average is not None  # noqa: S101 - a plan that adapts has one
        swing = agreement(update, parameters.double() - average, noise_std=noise)
        excess = max(0.0, z - _STRONG) + min(0.0, swing + _STRONG)
        changed = step.length * math.exp(math.tanh(excess / 4) / 2)
        return _straight(dataclasses.replace(step, length=changed), update)
    if z >= _EVIDENCE and step.length < _LONGEST * unit:
        grown = dataclasses.replace(step, length=_GROWTH * step.length, agreed=z)
        return grown, (_GROWTH - 1) * moved + grown.length * update
    # What was moved before the step shrank counts as one.
    num_updates = round_number - step.shrunk_in
    if step.agreed is None:
        has_turned = step.has_turned or z <= -_EVIDENCE
        if z > -_EVIDENCE and (has_turned or num_updates < max(_PATIENCE * plan.num_rounds, _FEWEST)):
            return _straight(step, update)
        shorter = Step(length=step.length / _GROWTH, failed=step.length, shrunk_in=round_number, has_turned=has_turned)
        return shorter, (1 / _GROWTH - 1) * moved
    if step.failed is not None and math.isclose(step.length, step.failed) and z < step.agreed / 2:
        turn = step.length / _GROWTH
    else:
        # Where a line from the last step's z to this one's crosses 0, over the logarithm of the step.
        turn = step.length * _GROWTH ** (step.agreed / (step.agreed - min(z, 0.0)) - 1)
    found = num_updates * turn * min(max(_WAYS, step.agreed) / plan.num_rounds, _AT_ONCE)
    return Step(length=found, found_in=round_number), (found / step.length - 1) * moved


def _straight(step: Step, update: Tensor) -> tuple[Step, Tensor]:
    return step, step.length * update


def agreement(update: Tensor, direction: Tensor, *, noise_std: float) -> float:
    """How far the update goes in this direction, in stds of the noise; 0 where there is no direction."""
    length = _length(direction)
    return float(np.multiply(update.numpy(), direction.numpy()).sum()) / (noise_std * length) if length > 0 else 0.0


def noise_std(plan: Plan) -> float:
    """Of each coordinate of the combined update, before Top-k."""
    sums = plan.groups[:1] if plan.release == "pooled" else plan.groups
    return plan.server_learning_rate * math.hypot(*(group.weight * group.noise_std for group in sums))


def _length(vector: Tensor) -> float:
    return float(np.sqrt(np.square(vector.numpy()).sum()))
