"""How a model is judged on the test set.

Place: after a round where an evaluation is due, for a simulation; `loop.Evaluation` is what comes out. In batches of a
fixed size, so that workers change nothing.
"""

import dataclasses
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from gdpfed.runs.loop import Evaluation
from gdpfed.tasks.losses import Metric, metric_values
from gdpfed.training.clients.cohort import CohortTrainer

__all__ = ["LOSS_REMOVED", "compared_with_start", "judged"]

_BATCH = 250
# In the place of an accuracy, where there are no right answers.
LOSS_REMOVED = "less loss than untrained"


def judged(
    model: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    *,
    trainer: CohortTrainer,
    metrics: Mapping[str, Metric],
    label_mix: NDArray[np.float64] | None,
) -> Evaluation:
    """By the loss that ``trainer`` trains with, on its threads; `compared_with_start` fills in an accuracy where there
    are no right answers."""
    loss = trainer.loss

    def judge(start: int) -> tuple[float, float | None, Tensor]:
        with torch.no_grad():
            end = start + _BATCH if start + _BATCH + 1 < len(targets) else len(targets)
            wanted = targets[start:end]
            outputs = model(inputs[start:end])
            total = float(loss.function(outputs, wanted).double().sum()) * (len(wanted) if loss.is_mean else 1)
            shares = loss.right(outputs, wanted)
            return total, None if shares is None else float(shares.sum()), outputs

    with _evaluating(model):
        totals, shares, parts = zip(*trainer.map(judge, _starts(len(targets))), strict=True)
    outputs = torch.cat(parts)
    mean_loss = math.fsum(totals) / len(targets)
    has_answers = None not in shares
    return Evaluation(
        accuracy=100 * math.fsum(shares) / len(targets) if has_answers else math.nan,
        loss=mean_loss if math.isfinite(mean_loss) else 1e300,
        by_budget=_by_budget(label_mix, outputs, targets) if label_mix is not None and loss.kind == "classes" else (),
        measure="accuracy" if has_answers else LOSS_REMOVED,
        metrics=metric_values(metrics, outputs, targets) or None,
    )


def _starts(number: int) -> range:
    """Of the batches. The last one takes a single example that would be left: a norm needs two."""
    return range(0, max(1, number - 1), _BATCH)


def compared_with_start(found: Evaluation, start_loss: float) -> Evaluation:
    """With the percentage of the untrained model's loss that is gone as its accuracy."""
    removed = 100 * (1 - found.loss / start_loss) if start_loss > 0 else 0.0
    return dataclasses.replace(found, accuracy=min(100.0, max(0.0, removed)))


def _by_budget(label_mix: NDArray[np.float64], outputs: Tensor, targets: Tensor) -> tuple[float, ...]:
    right = targets[outputs.argmax(1) == targets]
    correct, there = (np.bincount(one.numpy(), minlength=outputs.shape[1]) for one in (right, targets))
    return tuple(float(value) for value in 100 * label_mix @ (correct / np.maximum(there, 1)))


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """The model in eval mode, and afterwards each of its parts in the mode that it was in."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True
