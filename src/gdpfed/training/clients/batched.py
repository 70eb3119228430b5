"""Many clients' gradients in one pass.

Place: below the cohort trainer. A model becomes a function from stacked parameters (clients, ...) and stacked batches
(clients, batch, ...) to every client's gradient of its own weighted loss.

Four ways to do it, same mathematics:
  layers   a plain CNN, by hand: `layers.py`.
  linear   one dense layer on a part without parameters (`tasks/features.py`), by hand; features are computed once for a
           batch that stays.
  vmap     any other nn.Module, by torch.func. Clients do not mix, so one backward pass of the summed losses gives every
           client's own gradient.
  loop     what torch.func cannot batch (nn.LSTM, nn.GRU): one client after the other.

Guarantees (tests of the same name):
  batched_equals_single         gradients equal those of the module itself, client by client.
  linear_equals_autograd        likewise, of a dense layer on fixed features.
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
from gdpfed.tasks.features import KeptFeatures, LastCharacters, Scattering
from gdpfed.training.clients.layers import LayeredModel, loss_gradient

__all__ = ["BatchedModel", "LinearModel", "batched_model"]


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


class LinearModel:
    """A dense layer on fixed features, for all clients of a block at once."""

    block_clients = 30

    def __init__(self, model: nn.Sequential) -> None:
        self._fixed = model[0]

    @staticmethod
    def supports(model: nn.Module) -> bool:
        """Whether it is features, then a dense layer with a bias, and nothing else."""
        if type(model) is not nn.Sequential or len(model) != 2:
            return False
        fixed, dense = model
        is_fixed = type(fixed) in (KeptFeatures, LastCharacters, Scattering)
        return is_fixed and type(dense) is nn.Linear and dense.bias is not None

    def prepare(self, inputs: Tensor) -> Tensor:
        """Features (clients, batch, features) of inputs (clients, batch, ...), or of kept features."""
        features: Tensor = self._fixed(inputs.flatten(0, 1))
        return features.view(*inputs.shape[:2], -1)

    def gradients(
        self, parameters: Sequence[Tensor], prepared: Tensor, labels: Tensor, weights: Tensor
    ) -> list[Tensor]:
        """Of the cross-entropies (clients, batch) times ``weights``, by parameter."""
        matrix, bias = parameters
        logits = torch.baddbmm(bias.unsqueeze(1), prepared, matrix.transpose(1, 2))
        gradient = loss_gradient(logits, labels, weights)
        return [torch.bmm(gradient.transpose(1, 2), prepared), gradient.sum(1)]


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
