"""What a client minimises, and how a model is judged: named losses, and any function of one's own.

Place: between the data and the training: a loss says what targets are (classes, numbers, labels, tokens), what the
model must return for them, and which of its answers are right.

    cross-entropy     (batch, classes) against one class for each example; the default
    mse               numbers: the mean squared error of each example
    bce-with-logits   several labels for each example, each 0 or 1
    next-token        (batch, length, vocabulary) against the token that follows each; a target below 0 is left out

A function of one's own takes (outputs, targets) of one client's batch, and returns a loss for each example, or their
mean. A metric takes the same, of the whole test set, and returns a number.

Guarantees (tests of the same name):
  float_labels_are_no_classes     they are refused, with the loss for numbers in the message.
  targets_fit_the_model           shapes that would broadcast into nonsense are refused before the first round.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional

from gdpfed.config import imported, is_reference
from gdpfed.errors import InputError, suggestion

__all__ = ["CROSS_ENTROPY", "LOSSES", "Loss", "Metric", "loss_of", "metric_values", "metrics_of"]

Kind = Literal["classes", "numbers", "labels", "tokens", "any"]
Metric = Callable[[Tensor, Tensor], Any]


@dataclass(frozen=True, kw_only=True, eq=False)
class Loss:
    """``function`` of (outputs, targets) gives a loss for each example, or, where ``is_mean``, one number."""

    name: str
    function: Callable[[Tensor, Tensor], Tensor]
    kind: Kind = "any"
    is_mean: bool = False

    def targets(self, values: Tensor, *, where: str) -> Tensor:
        """The targets as the loss takes them; InputError where they are of another kind."""
        if self.kind == "numbers":
            return values.float()
        if self.kind == "labels":
            if not bool(((values >= 0) & (values <= 1)).all()):
                raise InputError(f"expected labels from 0 to 1 for {self.name}, got others {where}")
            return values.float()
        if self.kind == "any":
            return values.float() if values.is_floating_point() else values.long()
        if values.is_floating_point() or values.is_complex():
            raise InputError(
                f"expected whole numbers as {self.kind}, got {str(values.dtype).removeprefix('torch.')} {where}: for "
                f"numbers give loss 'mse', for classes convert them (labels.long())"
            )
        values = values.long()
        if self.kind == "classes" and values.ndim == 2 and values.shape[1] == 1:
            values = values[:, 0]
        if self.kind == "classes" and values.ndim != 1:
            raise InputError(
                f"expected one class for each example, got the shape {tuple(values.shape)} {where}: for several labels "
                f"give loss 'bce-with-logits', for tokens 'next-token'"
            )
        if self.kind == "classes" and bool((values < 0).any()):
            raise InputError(f"expected labels from 0 up, got {int(values.min())} {where}")
        return values

    def check(self, outputs: object, targets: Tensor, *, most: int | None = None) -> "Loss":
        """The loss, ready for a model that returns ``outputs`` for examples with ``targets``; ``most`` is the largest
        target of all. InputError where they do not go together."""
        if not isinstance(outputs, Tensor):
            raise InputError(
                f"expected a model that returns a tensor, got {type(outputs).__name__}: return the logits alone"
            )
        if self.kind in ("classes", "tokens"):
            wanted = {"classes": "(batch, classes)", "tokens": "(batch, length, vocabulary)"}[self.kind]
            if outputs.ndim != targets.ndim + 1 or outputs.shape[:-1] != targets.shape:
                fits = "" if self.kind == "classes" else f" for targets of {tuple(targets.shape)}"
                raise InputError(f"expected a model that returns {wanted}{fits}, got the shape {tuple(outputs.shape)}")
            if most is not None and most >= outputs.shape[-1]:
                raise InputError(
                    f"expected labels below {outputs.shape[-1]}, the model's number of classes, got {most}"
                )
        elif self.kind != "any" and _flat(outputs).shape != _flat(targets).shape:
            raise InputError(
                f"expected outputs and targets of one shape for {self.name}, got {tuple(outputs.shape)} and "
                f"{tuple(targets.shape)}"
            )
        if self.kind != "any":
            return self
        try:
            with torch.enable_grad():
                value = self.function(outputs.detach().requires_grad_(outputs.is_floating_point()), targets)
        except Exception as error:
            raise InputError(
                f"the loss {self.name} fails on outputs of {tuple(outputs.shape)} and targets of "
                f"{tuple(targets.shape)}: {error}"
            ) from error
        if not isinstance(value, Tensor) or tuple(value.shape) not in ((), (1,), (len(targets),)):
            shape = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise InputError(
                f"expected a loss of one number, or of one for each of {len(targets)} examples, got {shape}"
            )
        if not value.requires_grad:
            raise InputError(f"expected a loss with a gradient, got {self.name} without: compute it from the outputs")
        is_mean = value.ndim == 0 or len(value) != len(targets)
        return Loss(name=self.name, function=self.function, is_mean=is_mean)

    def right(self, outputs: Tensor, targets: Tensor) -> Tensor | None:
        """Which share of each example's answers is right (batch,); None where there are no right answers."""
        if self.kind == "labels":
            return ((_flat(outputs) > 0) == (_flat(targets) > 0.5)).double().mean(1)
        has_classes = not targets.is_floating_point() and outputs.shape[:-1] == targets.shape and outputs.ndim >= 2
        if self.kind in ("classes", "tokens") or (self.kind == "any" and has_classes):
            counted = _flat(targets) >= 0
            right = _flat(outputs.argmax(-1) == targets) & counted
            return right.double().sum(1) / counted.sum(1).clamp_min(1)
        return None


def _flat(values: Tensor) -> Tensor:
    """(batch, numbers): one number for each example may come as (batch,) or (batch, 1)."""
    return values.reshape(len(values), -1)


def _cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(outputs, targets, reduction="none")


def _squared(outputs: Tensor, targets: Tensor) -> Tensor:
    return (_flat(outputs) - _flat(targets)).square().mean(1)


def _binary(outputs: Tensor, targets: Tensor) -> Tensor:
    return functional.binary_cross_entropy_with_logits(_flat(outputs), _flat(targets), reduction="none").mean(1)


def _next_token(outputs: Tensor, targets: Tensor) -> Tensor:
    counted = (targets >= 0).to(outputs.dtype)
    logs = functional.log_softmax(outputs, dim=-1)
    losses = -logs.gather(-1, targets.clamp_min(0).unsqueeze(-1)).squeeze(-1) * counted
    return losses.sum(-1) / counted.sum(-1).clamp_min(1)


CROSS_ENTROPY = Loss(name="cross-entropy", function=_cross_entropy, kind="classes")
LOSSES: Mapping[str, Loss] = {
    "cross-entropy": CROSS_ENTROPY,
    "mse": Loss(name="mse", function=_squared, kind="numbers"),
    "bce-with-logits": Loss(name="bce-with-logits", function=_binary, kind="labels"),
    "next-token": Loss(name="next-token", function=_next_token, kind="tokens"),
}


def loss_of(loss: "str | Callable[[Tensor, Tensor], Tensor]") -> Loss:
    """A loss by its name, by ``package.module:function``, or as a function."""
    if isinstance(loss, str):
        if loss in LOSSES:
            return LOSSES[loss]
        if not is_reference(loss):
            raise InputError(
                f"expected a loss among {', '.join(LOSSES)}, or package.module:function, got {loss!r}"
                f"{suggestion(loss, LOSSES)}"
            )
        return Loss(name=loss, function=imported(loss, what="loss"))
    if not callable(loss):
        raise InputError(f"expected a loss's name, or a function of outputs and targets, got {loss!r}")
    return Loss(name=getattr(loss, "__name__", type(loss).__name__), function=loss)


def metrics_of(metrics: Mapping[str, Metric] | Sequence[str]) -> dict[str, Metric]:
    """Functions by name; texts are ``package.module:function``, and the function's name is the metric's."""
    named: dict[str, Metric] = {}
    if isinstance(metrics, Mapping):
        named = dict(metrics)
    else:
        for reference in metrics:
            if not is_reference(reference):
                raise InputError(f"expected a metric as package.module:function, got {reference!r}")
            named[reference.rpartition(":")[2]] = imported(reference, what="metric")
        if len(named) < len(metrics):
            raise InputError(f"expected metrics of different names, got {', '.join(metrics)}")
    for name, function in named.items():
        if name in ("accuracy", "loss"):
            raise InputError(f"{name!r} is computed by itself: choose another name for the metric")
        if not callable(function):
            raise InputError(f"expected a function as the metric {name!r}, got {function!r}")
    return named


def metric_values(metrics: Mapping[str, Metric], outputs: Tensor, targets: Tensor) -> dict[str, float]:
    """Of the whole test set; a value that is not finite is recorded as the largest number there is."""
    values = {}
    for name, function in metrics.items():
        try:
            value = float(function(outputs, targets))
        except Exception as error:
            raise InputError(f"the metric {name!r} fails: {error}") from error
        values[name] = value if math.isfinite(value) else math.copysign(1e300, value)
    return values
