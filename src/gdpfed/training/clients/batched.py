"""Many clients' gradients in one pass.

Place: below the cohort trainer. A model becomes a function from stacked parameters (clients, ...) and stacked batches
(clients, batch, ...) to every client's gradient of its own weighted loss.

Five ways to do it, same mathematics:
  layers   a plain CNN, by hand: `layers.py`.
  normed   one with batch norms, by hand: `normed.py`.
  linear   one dense layer on a part without parameters (`tasks/features.py`), by hand; features are computed once for a
           batch that stays.
  vmap     any other nn.Module, by torch.func. Clients do not mix, so one backward pass of the summed losses gives every
           client's own gradient.
  loop     one client after the other: what torch.func cannot batch (nn.LSTM, nn.GRU), and, on a CPU, convolutions of
           so many pixels that one client keeps a core busy: channels last, in half to three quarters of vmap's time.

Guarantees (tests of the same name):
  batched_equals_single         gradients equal those of the module itself, client by client.
  linear_equals_autograd        likewise, of a dense layer on fixed features.
  threads_do_not_meet           several threads may call one batched model; the module itself is never touched.
  large_images_go_alone         and small ones, and a GPU's, do not.
  any_order_of_memory           models that look at images or kernels by `view` train alone, too.
  frozen_parts_keep_their_type  only what is trained has the type of the parameters that come in.
  dropout_is_each_clients_own   the same masks for a client whoever shares its block, and with the loop.
  other_randomness_is_refused   it would draw in the order of the work.
  own_losses_equal_autograd     of each client's own batch, for losses of each example and for means.
  norms_see_no_padding          a batch norm's statistics are of each client's own examples, not of what pads them.
  freed_memory_is_used_again    a step takes none from the system, and gives none back.
"""

import copy
import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.modules.batchnorm import _BatchNorm

from gdpfed.errors import InputError
from gdpfed.tasks.features import Fixed, KeptFeatures, LastCharacters
from gdpfed.tasks.losses import CROSS_ENTROPY, Loss
from gdpfed.tasks.words import WordSoFar
from gdpfed.training.clients.dropout import SeededDropout
from gdpfed.training.clients.layers import Keys, LayeredModel, loss_gradient
from gdpfed.training.clients.normed import NormedModel

__all__ = ["BatchedModel", "LinearModel", "batched_model"]


class BatchedModel(Protocol):
    """One model, many clients."""

    block_clients: int
    """How many clients to take at a time, at most: beyond, caches are left."""
    takes_keys: bool
    """Whether it may draw masks, for which it needs each client's key."""

    def prepare(self, inputs: Tensor) -> Any:
        """What can be done once for stacked inputs (clients, batch, ...) that are used in several steps."""

    def gradients(
        self, parameters: Sequence[Tensor], prepared: Any, labels: Tensor, weights: Tensor, keys: Keys = None
    ) -> list[Tensor]:
        """Of the losses (clients, batch) times ``weights``, by trained parameter; valid until the next call. ``keys``
        are of the masks that each client's dropout draws."""


def batched_model(model: nn.Module, loss: Loss = CROSS_ENTROPY) -> BatchedModel:
    """The fastest way to train many copies of ``model`` at once."""
    _keep_freed_memory()
    if loss.kind == "classes" and all(parameter.requires_grad for parameter in model.parameters()):
        if LayeredModel.supports(model):
            return LayeredModel(cast(nn.Sequential, model))
        if NormedModel.supports(model):
            return NormedModel(cast(nn.Sequential, model))
        if LinearModel.supports(model):
            return LinearModel(cast(nn.Sequential, model))
    return _AnyModule(model, loss)


def _keep_freed_memory() -> None:
    """Lets this process, and those that it forks, use again what a step frees.

    glibc's malloc gives back to the system what is larger than any piece that was ever freed (up to 32 MiB), and the
    end of its heap beyond twice that: taking it again was half of a normed CNN's time. So a piece is freed, of memory
    that is never touched and costs nothing; other systems see no difference.
    """
    torch.empty(31 * 2**20, dtype=torch.uint8, device="cpu")


class LinearModel:
    """A dense layer on fixed features, for all clients of a block at once."""

    block_clients = 30
    takes_keys = False

    def __init__(self, model: nn.Sequential) -> None:
        self._fixed = model[0]

    @staticmethod
    def supports(model: nn.Module) -> bool:
        """Whether it is features, then a dense layer with a bias, and nothing else."""
        if type(model) is not nn.Sequential or len(model) != 2:
            return False
        fixed, dense = model
        is_fixed = type(fixed) in (KeptFeatures, LastCharacters, WordSoFar) or isinstance(fixed, Fixed)
        return is_fixed and type(dense) is nn.Linear and dense.bias is not None

    def prepare(self, inputs: Tensor) -> Tensor:
        """Features (clients, batch, features) of inputs (clients, batch, ...), or of kept features."""
        features: Tensor = self._fixed(inputs.flatten(0, 1))
        return features.view(*inputs.shape[:2], -1)

    def gradients(
        self, parameters: Sequence[Tensor], prepared: Tensor, labels: Tensor, weights: Tensor, keys: Keys = None
    ) -> list[Tensor]:
        """Of the cross-entropies (clients, batch) times ``weights``, by parameter."""
        del keys
        matrix, bias = parameters
        logits = torch.baddbmm(bias.unsqueeze(1), prepared, matrix.transpose(1, 2))
        gradient = loss_gradient(logits, labels, weights)
        return [torch.bmm(gradient.transpose(1, 2), prepared), gradient.sum(1)]


# Of a client's batch of images, on a CPU. With 39,200 and with 51,200 the loop takes three quarters of the time of vmap
# (5x5 convolutions to 16 and 32 channels; ResNet-18), with 20,480 less, with 10,240 a sixth more, with 3,136 twice it.
_MANY_PIXELS = 15_000


class _AnyModule:
    """Any module and any loss, by vmap, or one client after the other where vmap cannot or is slower."""

    block_clients = 20
    takes_keys = True

    def __init__(self, model: nn.Module, loss: Loss) -> None:
        # functional_call swaps a module's parameters while it runs, so every thread needs a module of its own.
        self._pattern = copy.deepcopy(model)
        self._own = threading.local()
        self._names = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
        self._loss = loss
        # A norm without running statistics makes each example's output depend on what is in its batch.
        mixes_rows = any(isinstance(module, _BatchNorm) for module in model.modules())
        self._is_of_the_batch = mixes_rows or loss.is_mean
        self._convolves = any(isinstance(module, nn.Conv2d) for module in model.modules())
        self._one_by_one = False
        # Images and kernels, in the loop: fast, but not for a model that looks at them by `view`.
        self._allows_channels_last = True

    def prepare(self, inputs: Tensor) -> Tensor:
        """Nothing can be."""
        return inputs

    def gradients(
        self, parameters: Sequence[Tensor], prepared: Tensor, labels: Tensor, weights: Tensor, keys: Keys = None
    ) -> list[Tensor]:
        """As the protocol says, by autograd."""
        if not hasattr(self._own, "model"):
            self._own.model = copy.deepcopy(self._pattern)
            self._own.trained = [parameter for parameter in self._own.model.parameters() if parameter.requires_grad]
            for own, part in zip(self._own.trained, parameters, strict=True):
                own.data = own.data.to(part.dtype)
        if not self._one_by_one and not self._is_better_alone(prepared):
            try:
                return self._together(parameters, prepared, labels, weights, keys)
            except RuntimeError as error:
                if "randomness" in str(error):
                    raise _random(error) from error
                if not any(known in str(error) for known in _NOT_BATCHED):
                    raise
                self._one_by_one = True
        gradients = [torch.empty_like(part) for part in parameters]
        before = torch.get_rng_state()
        for i in range(len(labels)):
            own = [part[i] for part in parameters]
            found = self._one(own, prepared[i], labels[i], weights[i], None if keys is None else keys[i])
            for to, part in zip(gradients, found, strict=True):
                to[i] = part
        if not torch.equal(before, torch.get_rng_state()):
            raise _random(None)
        return gradients

    def _is_better_alone(self, inputs: Tensor) -> bool:
        """Of inputs (clients, batch, channels, rows, columns)."""
        on_cpu = inputs.device.type == "cpu"
        return self._convolves and on_cpu and inputs.ndim == 5 and inputs[0, :, 0].numel() >= _MANY_PIXELS

    def _together(
        self, parameters: Sequence[Tensor], inputs: Tensor, labels: Tensor, weights: Tensor, keys: Keys
    ) -> list[Tensor]:
        """Of many clients, by vmap."""
        leaves = tuple(part.detach().requires_grad_() for part in parameters)
        if not self._is_of_the_batch:
            total = self._total(leaves, inputs, labels, weights, keys)
        else:
            # Of each client's own batch, without what pads it: clients of one size at a time.
            sizes = (weights > 0).sum(-1)
            totals = []
            for size in sorted(set(sizes.tolist())):
                rows = torch.nonzero(sizes == size)[:, 0]
                own = tuple(leaf[rows] for leaf in leaves)
                of_rows = None if keys is None else keys[rows]
                cut_inputs, cut_labels, cut_weights = (part[rows, :size] for part in (inputs, labels, weights))
                totals.append(self._total(own, cut_inputs, cut_labels, cut_weights, of_rows))
            total = torch.stack(totals).sum()
        return list(torch.autograd.grad(total, leaves, materialize_grads=True))

    def _total(self, leaves: tuple[Tensor, ...], inputs: Tensor, labels: Tensor, weights: Tensor, keys: Keys) -> Tensor:
        """The losses' sum over all clients."""
        if self._loss.kind == "classes":
            return self._weighted(_each(self._single, leaves, inputs, keys), labels, weights)
        losses = _each(self._losses, leaves, inputs, labels, keys)
        return losses.sum() if self._loss.is_mean else (losses * weights).sum()

    def _losses(self, parameters: tuple[Tensor, ...], inputs: Tensor, labels: Tensor, key: Keys) -> Tensor:
        return self._loss.function(self._single(parameters, inputs, key), labels)

    def _single(self, parameters: tuple[Tensor, ...], inputs: Tensor, key: Keys) -> Tensor:
        named = dict(zip(self._names, parameters, strict=True))
        with SeededDropout(key):
            return cast(Tensor, functional_call(self._own.model, named, (inputs,)))

    def _one(self, parameters: Sequence[Tensor], *client: Any) -> Sequence[Tensor]:
        """Of one client, channels last where the model allows that."""
        if self._allows_channels_last:
            try:
                return self._alone(_channels_last, parameters, *client)
            except RuntimeError as error:
                if "view size is not compatible" not in str(error):
                    raise
                self._allows_channels_last = False
        return self._alone(torch.Tensor.contiguous, parameters, *client)

    def _alone(
        self,
        ordered: Callable[[Tensor], Tensor],
        parameters: Sequence[Tensor],
        inputs: Tensor,
        labels: Tensor,
        weights: Tensor,
        key: Keys,
    ) -> Sequence[Tensor]:
        """Of one client, by this thread's module itself; images and kernels are ``ordered`` in memory."""
        for own, part in zip(self._own.trained, parameters, strict=True):
            own.data = ordered(part.detach())
        if self._is_of_the_batch:
            size = int(weights.count_nonzero())
            inputs, labels, weights = inputs[:size], labels[:size], weights[:size]
        with SeededDropout(key):
            outputs = self._own.model(ordered(inputs))
        if self._loss.kind == "classes":
            total = self._weighted(outputs, labels, weights)
        else:
            losses = self._loss.function(outputs, labels)
            total = losses.sum() if self._loss.is_mean else (losses * weights).sum()
        found: Sequence[Tensor] = torch.autograd.grad(total, self._own.trained, materialize_grads=True)
        return found

    @staticmethod
    def _weighted(logits: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
        losses = nn.functional.cross_entropy(logits.flatten(0, -2), labels.flatten(), reduction="none")
        return (losses * weights.flatten()).sum()


def _channels_last(values: Tensor) -> Tensor:
    """Images and kernels in the order in which convolutions are fast; all else as it is."""
    return values.contiguous(memory_format=torch.channels_last) if values.ndim == 4 else values


def _each(function: Callable[..., Tensor], *arguments: Any) -> Tensor:
    return vmap(function, in_dims=tuple(None if argument is None else 0 for argument in arguments))(*arguments)


# What vmap says of something that it cannot do for many clients at once: an operation, a branch on a value, a number.
_NOT_BATCHED = ("Batching rule not implemented", "vmap", "data-dependent control flow")


def _random(error: Exception | None) -> InputError:
    because = "" if error is None else f" ({str(error).splitlines()[0][:120]})"
    return InputError(
        f"the model draws random numbers in the order of the work, so the same seed would not give the same model"
        f"{because}: of random layers only dropout can be trained; take the random part out"
    )
