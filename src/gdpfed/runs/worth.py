"""What makes a result worth little, in sentences: said when a run ends, and kept in its folder.

Place: after the last round. A remark is no error: the run is what it is, and a reader should know. Of a deployment
nobody knows most of this.

Guarantees (tests of the same name):
  worthless_results_are_said     broken inputs, dropped updates, groups that never took part, divergence, a model that
                                 knows no more than the most frequent answer.
  a_sound_result_has_no_remarks  of a run that learned.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gdpfed.planning.notes import plan_doubts
from gdpfed.planning.plan import Plan
from gdpfed.runs.loop import Evaluation
from gdpfed.runs.record import Record

__all__ = ["broken_clients", "remarks_of"]

# Of the test set: what chance explains of a difference between two accuracies.
_LUCK = 2.0


def broken_clients(inputs: Tensor, members: Sequence[NDArray[np.int64]]) -> int:
    """How many clients have inputs that are not finite."""
    if not inputs.is_floating_point() or bool(torch.isfinite(inputs.sum())):
        return 0
    broken = ~torch.isfinite(inputs).flatten(1).all(1).numpy()
    return sum(bool(broken[own].any()) for own in members)


def remarks_of(
    plan: Plan,
    *,
    parameters: Tensor,
    participations: NDArray[np.int64],
    assignment: NDArray[np.int64],
    dropped: int,
    broken: int,
    judged: Sequence[Evaluation | Record],
    start_loss: float,
    test_targets: Tensor,
) -> tuple[str, ...]:
    """The plan's doubts, and what the run has shown.

    ``judged`` are all evaluations; ``dropped`` counts updates that were not finite in all rounds, ``broken`` clients
    with inputs that are not. ``start_loss`` is the untrained model's.
    """
    losses = [one.loss for one in judged]
    remarks = list(plan_doubts(plan))
    if broken:
        remarks.append(f"{broken} of {len(assignment)} clients have inputs that are not finite: NaN or infinity")
    if dropped:
        remarks.append(
            f"{dropped} updates were not finite, and counted as zero: look for broken inputs, or lower learning_rate"
        )
    seen = np.bincount(assignment, weights=participations, minlength=len(plan.groups))
    for group, count in zip(plan.groups, seen, strict=True):
        if not count and participations.any():
            remarks.append(f"nobody of {group.name} took part in any round: the model knows nothing of them")
    if not participations.any():
        remarks.append("nobody took part in any round: the model is its start, and noise")
    if not math.isfinite(float(parameters.double().abs().sum())):
        remarks.append("the model diverged, its parameters are not finite: lower learning_rate or clip_norm")
    elif losses and losses[-1] >= 1e300:
        remarks.append("the model diverged, its loss is not finite: lower learning_rate or clip_norm")
    elif losses and losses[-1] > start_loss:
        remarks.append(
            f"the loss is {losses[-1]:.4g}, above the {start_loss:.4g} of the untrained model: lower learning_rate, "
            f"clip_norm or server_learning_rate, or have more clients in a round"
        )
    guess = _frequent(test_targets)
    if judged and guess is not None and judged[-1].measure == "accuracy":
        last = judged[-1]
        share = 100 * guess
        luck = _LUCK * 100 * math.sqrt(guess * (1 - guess) / len(test_targets))
        if last.accuracy <= share + luck:
            remarks.append(
                f"accuracy {last.accuracy:.2f} % is no better than always the most frequent answer, {share:.2f} %"
            )
    return tuple(remarks)


def _frequent(targets: Tensor) -> float | None:
    """The share of the most frequent class; None where there are no classes."""
    if targets.is_floating_point() or targets.ndim != 1 or not len(targets):
        return None
    return float(torch.bincount(targets.clamp_min(0)).max()) / len(targets)
