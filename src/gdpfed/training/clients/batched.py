"""Many clients' gradients in one pass.

Place: below the cohort trainer. A model becomes a function from stacked parameters (clients, ...) and stacked batches
(clients, batch, ...) to every client's gradient of its own weighted loss.

Four ways to do it, same mathematics:
  layers   a plain CNN, by hand: `layers.py`.
  linear   one dense layer on fixed features, by hand: `linear.py`.
  vmap     any other nn.Module, by torch.func. Clients do not mix, so one backward pass of the summed losses gives every
           client's own gradient.
  loop     what torch.func cannot batch (nn.LSTM, nn.GRU): one client after the other.

Guarantees (tests of the same name):
  batched_equals_single         gradients equal those of the module itself, client by client.
  threads_do_not_meet           several threads may call one batched model; the module itself is never touched.
  random_layers_are_refused     dropout would draw in the order of the work.
"""

import copy
import threading
from collections.abc import Sequence
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from gdpfed.errors import InputError
from gdpfed.training.clients.layers import LayeredModel
from gdpfed.training.clients.linear import LinearModel

__all__ = ["BatchedModel", "batched_model"]


class BatchedModel(Protocol):
    """One model, many clients."""

    block_clients: int
    """How many clients to take at a time, at most: beyond, caches are left."""

    def prepare(self, inputs: Tensor) -> Any:
        """What can be done once for stacked inputs (clients, batch, ...) that are used in several steps."""

    def gradients(self, parameters: Sequence[Tensor], prepared: Any, labels: Tensor, weights: Tensor) -> list[Tensor]:
        """Of the cross-entropies (clients, batch) times ``weights``, by parameter; valid until the next call."""


def batched_model(model: nn.Module) -> BatchedModel:
    """The fastest way to train many copies of ``model`` at once."""
    if LayeredModel.supports(model):
        return LayeredModel(cast(nn.Sequential, model))
    if LinearModel.supports(model):
        return LinearModel(cast(nn.Sequential, model))
    return _AnyModule(model)


class _AnyModule:
    """Any module, by vmap, or one client after the other where vmap cannot."""

    block_clients = 20

    def __init__(self, model: nn.Module) -> None:
        for name, module in model.named_modules():
            if isinstance(module, nn.modules.dropout._DropoutNd) and module.training and module.p > 0:
                raise InputError(
                    f"{type(module).__name__} at {name or 'the top'!r} draws in the order of the work, so the same "
                    f"seed would not give the same model: set its p to 0, or call eval() on it"
                )
        # functional_call swaps a module's parameters while it runs, so every thread needs a module of its own.
        self._pattern = copy.deepcopy(model)
        self._own = threading.local()
        self._names = [name for name, _ in model.named_parameters()]
        self._one_by_one = False

    def prepare(self, inputs: Tensor) -> Tensor:
        """Nothing can be."""
        return inputs

    def gradients(
        self, parameters: Sequence[Tensor], prepared: Tensor, labels: Tensor, weights: Tensor
    ) -> list[Tensor]:
        """As the protocol says, by autograd."""
        if not hasattr(self._own, "model"):
            self._own.model = copy.deepcopy(self._pattern)
        if not self._one_by_one:
            try:
                return self._gradients(parameters, prepared, labels, weights)
            except RuntimeError as error:
                if "randomness" in str(error):
                    raise InputError(
                        "the model draws random numbers in the order of the work, so the same seed would not give the "
                        "same model: take the random part out"
                    ) from error
                if "Batching rule not implemented" not in str(error):
                    raise
                self._one_by_one = True
        clients = range(len(labels))
        rows = [self._gradients([part[i] for part in parameters], prepared[i], labels[i], weights[i]) for i in clients]
        return [torch.stack(parts) for parts in zip(*rows, strict=True)]

    def _gradients(self, parameters: Sequence[Tensor], inputs: Tensor, labels: Tensor, weights: Tensor) -> list[Tensor]:
        """Of one client, or of many at once, whose tensors have one more dimension."""
        leaves = [part.detach().requires_grad_() for part in parameters]
        logits = self._single(tuple(leaves), inputs) if labels.ndim == 1 else vmap(self._single)(tuple(leaves), inputs)
        losses = nn.functional.cross_entropy(logits.flatten(0, -2), labels.flatten(), reduction="none")
        return list(torch.autograd.grad((losses * weights.flatten()).sum(), leaves, materialize_grads=True))

    def _single(self, parameters: tuple[Tensor, ...], inputs: Tensor) -> Tensor:
        named = dict(zip(self._names, parameters, strict=True))
        return cast(Tensor, functional_call(self._own.model, named, (inputs,)))
