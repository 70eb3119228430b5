"""Gradients of many small CNNs at once, by hand.

Place: the fast way of `batched.py`, for an nn.Sequential of convolutions (each with ReLU and MaxPool2d(2), or without),
Flatten and dense layers; `normed.py` shares these, for models with norms. Small kernels, not arithmetic, bound such
models, so the work is arranged for them:

  layout     (clients, channels, rows, columns, batch): patches are copied, and their gradients added back, in runs of
             columns times batch numbers, and a convolution is one plain matrix product for each client.
  patches    of the images themselves are cut once for a batch that stays, ordered by their place in the pool, so that
             pooling is a maximum of four contiguous parts.
  bias, ReLU after the pool, where there is a quarter of the numbers.
  memory     and all views of it are made once for each thread and shape of a block, and used again in every step.

Guarantees (tests of the same name):
  layers_equal_autograd         each client's gradients equal those of the module itself, ties of a pool included.
  unusual_models_are_not_fast   a Sequential that only looks like the known ones is not taken.
"""

import itertools
import re
import threading
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from gdpfed.training.clients.convolutions import Convolution, rectified_gradient

__all__ = ["Keys", "LayeredModel", "Layers", "letters_of", "loss_gradient"]

# Of the masks that each client's dropout draws, for models that have it.
Keys = Tensor | None

# Convolutions, flat, dense; c: Conv2d, n: BatchNorm2d, r: ReLU, p: MaxPool2d, f: Flatten, d: Linear.
_LETTERS: dict[type[nn.Module], str] = {
    nn.Conv2d: "c", nn.BatchNorm2d: "n", nn.ReLU: "r", nn.MaxPool2d: "p", nn.Flatten: "f", nn.Linear: "d"
}  # fmt: skip
_WEIGHTS = (["weight"], ["weight", "bias"])
_ORDER = re.compile(r"(?:cn?(?:r|p|rp|pr)?)+f(?:dr?)+")


def letters_of(model: nn.Module) -> str | None:
    """One for each layer: c of convolutions with at most a norm (n), a ReLU (r) and a pool (p) each, f of Flatten, d of
    dense layers with at most a ReLU. None if it is anything else."""
    if type(model) is not nn.Sequential or _has_hooks(model) or not all(_is_known(layer) for layer in model):
        return None
    letters = "".join(_LETTERS[type(layer)] for layer in model)
    own_weights = sum(len(list(layer.parameters())) for layer in model) == len(list(model.parameters()))
    return letters if own_weights and _ORDER.fullmatch(letters) else None


def loss_gradient(logits: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    """Of the cross-entropies (clients, batch) times ``weights``, by logit (clients, batch, classes)."""
    gradient = torch.softmax(logits, dim=2)
    gradient -= nn.functional.one_hot(labels, gradient.shape[2])
    gradient *= weights.unsqueeze(2)
    return gradient


class Layers:
    """An nn.Sequential of known layers, taken apart."""

    def __init__(self, model: nn.Sequential) -> None:
        # Not model.children(), which leaves out a layer's second appearance.
        layers = list(model)
        flat = next(index for index, layer in enumerate(layers) if isinstance(layer, nn.Flatten))
        starts = [index for index, layer in enumerate(layers[:flat]) if isinstance(layer, nn.Conv2d)]
        # Each convolution, and what follows it.
        self.convolutions = [
            (cast(nn.Conv2d, layers[start]), layers[start + 1 : end])
            for start, end in zip(starts, [*starts[1:], flat], strict=True)
        ]
        self._rectified = [
            type(following) is nn.ReLU
            for dense, following in zip(layers[flat:], [*layers[flat + 1 :], None], strict=True)
            if type(dense) is nn.Linear
        ]
        # How many parameters each convolution, with its norm, has; then each dense layer.
        groups = [[layer, *following] for layer, following in self.convolutions]
        groups += [[layer] for layer in layers[flat:] if type(layer) is nn.Linear]
        self._counts = [sum(len(list(layer.parameters())) for layer in group) for group in groups]

    def split(self, parameters: Sequence[Tensor]) -> tuple[list[list[Tensor]], list[list[Tensor]]]:
        """Those of each convolution, with its norm, and of each dense layer."""
        rest = iter(part.detach() for part in parameters)
        own = [list(itertools.islice(rest, count)) for count in self._counts]
        return own[: len(self.convolutions)], own[len(self.convolutions) :]

    def dense(
        self, features: Tensor, dense: Sequence[Sequence[Tensor]], labels: Tensor, weights: Tensor
    ) -> tuple[Tensor, list[Tensor]]:
        """Gradients of the features (clients, batch, features) and of the dense layers' parameters."""
        entered = [features]
        for rectified, (matrix, *bias) in zip(self._rectified, dense, strict=True):
            across = matrix.transpose(1, 2)
            if bias:
                hidden = torch.baddbmm(bias[0].unsqueeze(1), entered[-1], across)
            else:
                hidden = torch.bmm(entered[-1], across)
            entered.append(hidden.clamp_min_(0) if rectified else hidden)
        gradient = loss_gradient(entered[-1], labels, weights)
        if self._rectified[-1]:
            gradient = rectified_gradient(gradient, entered[-1])
        gradients: list[Tensor] = []
        for index in reversed(range(len(dense))):
            matrix, *bias = dense[index]
            of_bias = [gradient.sum(1) for _ in bias]
            gradients = [torch.bmm(gradient.transpose(1, 2), entered[index]), *of_bias, *gradients]
            gradient = torch.bmm(gradient, matrix)
            if index and self._rectified[index - 1]:
                gradient = rectified_gradient(gradient, entered[index])
        return gradient, gradients


class _Blocks(threading.local):
    """One thread's memory."""

    def __init__(self) -> None:
        self.by_shape: dict[tuple[torch.Size, torch.dtype], list[Convolution]] = {}


class LayeredModel:
    """An nn.Sequential of known layers without norms, for all clients of a block at once."""

    # Beyond, their memory leaves the caches; below, the calls cost more than the work.
    block_clients = 4
    takes_keys = False

    def __init__(self, model: nn.Sequential) -> None:
        self._layers = Layers(model)
        self._blocks = _Blocks()

    @staticmethod
    def supports(model: nn.Module) -> bool:
        """Whether `letters_of` knows it, and it has no norm."""
        letters = letters_of(model)
        return letters is not None and "n" not in letters

    def prepare(self, inputs: Tensor) -> list[Convolution]:
        """Images (clients, batch, channels, rows, columns) in our layout, with their patches; valid until the next."""
        kept = self._blocks.by_shape
        key = (inputs.shape, inputs.dtype)
        images = inputs.permute(0, 2, 3, 4, 1)
        if key not in kept:
            # A cohort has blocks of two sizes at most; more would be another cohort's.
            if len(kept) >= 2:
                kept.clear()
            made: list[Convolution] = []
            for layer, following in self._layers.convolutions:
                entering = made[-1].result if made else inputs.new_empty(images.shape)
                made.append(Convolution(entering, layer, following, is_first=not made))
            kept[key] = made
        layers = kept[key]
        layers[0].images.copy_(images)
        layers[0].cut()
        return layers

    def gradients(
        self,
        parameters: Sequence[Tensor],
        prepared: list[Convolution],
        labels: Tensor,
        weights: Tensor,
        keys: Keys = None,
    ) -> list[Tensor]:
        """Of the cross-entropies (clients, batch) times ``weights``, by parameter; valid until the next call."""
        del keys
        convolved, dense = self._layers.split(parameters)
        for index, (layer, of_layer) in enumerate(zip(prepared, convolved, strict=True)):
            if index:
                layer.cut()
            layer.forward(of_layer)
        images = prepared[-1].result
        gradient, gradients = self._layers.dense(images.flatten(1, 3).transpose(1, 2), dense, labels, weights)
        gradient = gradient.transpose(1, 2).reshape(images.shape)
        for layer, of_layer in zip(reversed(prepared), reversed(convolved), strict=True):
            gradients = [*layer.backward(of_layer, gradient), *gradients]
            if layer.of_images is not None:
                gradient = layer.of_images
        return gradients


def _is_known(layer: nn.Module) -> bool:
    names = [name for name, _ in layer.named_parameters()]
    if isinstance(layer, nn.Conv2d):
        height, width = layer.kernel_size
        plain = layer.stride == layer.dilation == (1, 1) and layer.groups == 1 and layer.padding_mode == "zeros"
        padded = isinstance(layer.padding, tuple) and layer.padding[0] == layer.padding[-1]
        return type(layer) is nn.Conv2d and height == width and plain and padded and names in _WEIGHTS
    if isinstance(layer, nn.BatchNorm2d):
        # Either would be running statistics.
        still = layer.running_mean is None and layer.running_var is None
        return type(layer) is nn.BatchNorm2d and still and names == ["weight", "bias"]
    if isinstance(layer, nn.MaxPool2d):
        twos = all(value in (2, (2, 2)) for value in (layer.kernel_size, layer.stride))
        still = layer.dilation in (1, (1, 1)) and not layer.return_indices
        return type(layer) is nn.MaxPool2d and twos and still and layer.padding in (0, (0, 0)) and not layer.ceil_mode
    if isinstance(layer, nn.Flatten):
        return type(layer) is nn.Flatten and (layer.start_dim, layer.end_dim) == (1, -1)
    if isinstance(layer, nn.Linear):
        return type(layer) is nn.Linear and names in _WEIGHTS
    return type(layer) is nn.ReLU


def _has_hooks(model: nn.Module) -> bool:
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return any(getattr(module, kind) for module in model.modules() for kind in kinds)
