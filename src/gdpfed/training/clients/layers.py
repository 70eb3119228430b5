"""Gradients of many small CNNs at once, by hand.

Place: the fast way of `batched.py`, for an nn.Sequential of convolutions (each with ReLU and MaxPool2d(2), or without),
Flatten and dense layers. Small kernels, not arithmetic, bound such models, so the work is arranged for them:

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

import re
import threading
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

__all__ = ["Keys", "LayeredModel", "loss_gradient"]

# Of the masks that each client's dropout draws, for models that have it.
Keys = Tensor | None

# Convolutions, flat, dense; c: Conv2d, r: ReLU, p: MaxPool2d, f: Flatten, d: Linear.
_LETTERS: dict[type[nn.Module], str] = {
    nn.Conv2d: "c", nn.ReLU: "r", nn.MaxPool2d: "p", nn.Flatten: "f", nn.Linear: "d"
}  # fmt: skip
_ORDER = re.compile(r"(?:c(?:r|p|rp|pr)?)+f(?:dr?)+")


def loss_gradient(logits: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    """Of the cross-entropies (clients, batch) times ``weights``, by logit (clients, batch, classes)."""
    gradient = torch.softmax(logits, dim=2)
    gradient -= nn.functional.one_hot(labels, gradient.shape[2])
    gradient *= weights.unsqueeze(2)
    return gradient


def _rectified_gradient(gradient: Tensor, result: Tensor) -> Tensor:
    return cast(Tensor, torch.ops.aten.threshold_backward(gradient, result, 0))


class _Pool:
    """The largest of four, in pairs of pairs: columns first, so that of equal values the first takes the gradient."""

    def __init__(self, result: Tensor) -> None:
        self._result = result
        self._upper, self._lower = torch.empty_like(result), torch.empty_like(result)
        # Comparisons as numbers: products of equal types are the fast ones.
        self._left_of_upper, self._left_of_lower = torch.empty_like(result), torch.empty_like(result)
        self._is_upper = torch.empty_like(result)

    def forward(self, quarters: Sequence[Tensor]) -> None:
        upper_left, upper_right, lower_left, lower_right = quarters
        torch.maximum(upper_left, upper_right, out=self._upper)
        torch.maximum(lower_left, lower_right, out=self._lower)
        torch.ge(upper_left, upper_right, out=self._left_of_upper)
        torch.ge(lower_left, lower_right, out=self._left_of_lower)
        torch.maximum(self._upper, self._lower, out=self._result)
        torch.ge(self._upper, self._lower, out=self._is_upper)

    def backward(self, gradient: Tensor, quarters: Sequence[Tensor]) -> None:
        """Each gradient to the place of its maximum, zero to the other three."""
        upper_left, upper_right, lower_left, lower_right = quarters
        torch.mul(gradient, self._is_upper, out=self._upper)
        torch.sub(gradient, self._upper, out=self._lower)
        torch.mul(self._upper, self._left_of_upper, out=upper_left)
        torch.sub(self._upper, upper_left, out=upper_right)
        torch.mul(self._lower, self._left_of_lower, out=lower_left)
        torch.sub(self._lower, lower_left, out=lower_right)


class _Convolution:
    """A convolution of ``images``, then the pool, the bias and the ReLU that follow it; with all its memory.

    ``images`` is read in every call, so whoever made it writes the next batch into it.
    """

    def __init__(self, images: Tensor, layer: nn.Conv2d, following: Sequence[nn.Module], *, is_first: bool) -> None:
        self._rectified = any(isinstance(other, nn.ReLU) for other in following)
        self._pooled = any(isinstance(other, nn.MaxPool2d) for other in following)
        clients, channels, height, width, batch = images.shape
        outputs, size, edge = layer.out_channels, layer.kernel_size[0], int(layer.padding[0])
        rows, columns = height + 2 * edge - size + 1, width + 2 * edge - size + 1
        self.images = images
        self._padded = images
        if edge:
            self._padded = images.new_zeros(clients, channels, height + 2 * edge, width + 2 * edge, batch)
        self._inside = self._padded[:, :, edge : edge + height, edge : edge + width]
        # Only the first layer's patches may lie in any order: the others' gradients go back where they came from.
        by_quarter = is_first and self._pooled and rows % 2 == 0 and columns % 2 == 0
        self._patches = images.new_empty(clients, channels * size**2, rows * columns * batch)
        self._patches_by_column = self._patches.transpose(1, 2)
        self._cuts = self._cut_views(size, rows, columns, by_quarter)
        self._summed = images.new_empty(clients, outputs, rows * columns * batch)
        # Zeros: an odd last row or column is in no pool.
        self._of_summed = torch.zeros_like(self._summed)
        self._of_kernel = images.new_empty(clients, outputs, channels * size**2)
        self.result = self._summed.view(clients, outputs, rows, columns, batch)
        if self._pooled:
            self.result = images.new_empty(clients, outputs, rows // 2, columns // 2, batch)
            self._pool = _Pool(self.result)
            self._quarters = _quarters(self._summed, rows, columns, batch, by_quarter)
            self._of_quarters = _quarters(self._of_summed, rows, columns, batch, by_quarter)
        self.of_images: Tensor | None = None
        if not is_first:
            self._of_patches = torch.empty_like(self._patches)
            self._of_padded = torch.empty_like(self._padded)
            self.of_images = self._of_padded[:, :, edge : edge + height, edge : edge + width]
            parts = self._of_patches.view(clients, channels, size, size, rows, columns, batch)
            self._additions = [
                (self._of_padded[:, :, row : row + rows, column : column + columns], parts[:, :, row, column])
                for row in range(size)
                for column in range(size)
            ]

    def _cut_views(self, size: int, rows: int, columns: int, by_quarter: bool) -> list[tuple[Tensor, Tensor]]:
        """Pairs of views (to, from): together, all patches in the layout of ``_patches``."""
        clients, channels, *_, batch = self.images.shape
        cut = self._padded.unfold(2, size, 1).unfold(3, size, 1).permute(0, 1, 5, 6, 2, 3, 4)
        if not by_quarter:
            return [(self._patches.view(clients, channels, size, size, rows, columns, batch), cut)]
        parts = self._patches.view(clients, channels, size, size, 2, 2, rows // 2, columns // 2, batch)
        return [
            (parts[:, :, :, :, row, column], cut[:, :, :, :, row::2, column::2]) for row in (0, 1) for column in (0, 1)
        ]

    def cut(self) -> None:
        """Takes the patches of what is in ``images`` now."""
        if self._padded is not self.images:
            self._inside.copy_(self.images)
        for to, source in self._cuts:
            to.copy_(source)

    def forward(self, kernel: Tensor, bias: Tensor) -> None:
        """Fills ``result`` (clients, outputs, rows, columns, batch)."""
        torch.bmm(kernel.flatten(2), self._patches, out=self._summed)
        if self._pooled:
            self._pool.forward(self._quarters)
        self.result += bias[:, :, None, None, None]
        if self._rectified:
            self.result.clamp_min_(0)

    def backward(self, kernel: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
        """Gradients of the kernel and the bias; fills ``of_images``, where there is one."""
        if self._rectified:
            gradient = _rectified_gradient(gradient, self.result)
        of_bias = gradient.sum((2, 3, 4))
        if self._pooled:
            self._pool.backward(gradient, self._of_quarters)
        else:
            self._of_summed.view(gradient.shape).copy_(gradient)
        torch.bmm(self._of_summed, self._patches_by_column, out=self._of_kernel)
        if self.of_images is not None:
            torch.bmm(kernel.flatten(2).transpose(1, 2), self._of_summed, out=self._of_patches)
            self._of_padded.zero_()
            for to, part in self._additions:
                to += part
        return self._of_kernel.view(kernel.shape), of_bias


def _quarters(values: Tensor, rows: int, columns: int, batch: int, by_quarter: bool) -> tuple[Tensor, ...]:
    """Four views of (clients, outputs, positions * batch): the values that meet in each pool."""
    clients, outputs, _ = values.shape
    if by_quarter:
        return values.view(clients, outputs, 4, rows // 2, columns // 2, batch).unbind(2)
    whole = values.view(clients, outputs, rows, columns, batch)[:, :, : rows // 2 * 2, : columns // 2 * 2]
    return tuple(whole[:, :, row::2, column::2] for row in (0, 1) for column in (0, 1))


class _Blocks(threading.local):
    """One thread's memory."""

    def __init__(self) -> None:
        self.by_shape: dict[tuple[torch.Size, torch.dtype], list[_Convolution]] = {}


class LayeredModel:
    """An nn.Sequential of known layers, for all clients of a block at once."""

    # Beyond, their memory leaves the caches; below, the calls cost more than the work.
    block_clients = 4
    takes_keys = False

    def __init__(self, model: nn.Sequential) -> None:
        # Not model.children(), which leaves out a layer's second appearance.
        layers = list(model)
        flat = next(index for index, layer in enumerate(layers) if isinstance(layer, nn.Flatten))
        starts = [index for index, layer in enumerate(layers[:flat]) if isinstance(layer, nn.Conv2d)]
        # Each convolution, and what follows it.
        self._convolutions = [
            (cast(nn.Conv2d, layers[start]), layers[start + 1 : end])
            for start, end in zip(starts, [*starts[1:], flat], strict=True)
        ]
        self._rectified = [
            type(following) is nn.ReLU
            for dense, following in zip(layers[flat:], [*layers[flat + 1 :], None], strict=True)
            if type(dense) is nn.Linear
        ]
        self._blocks = _Blocks()

    @staticmethod
    def supports(model: nn.Module) -> bool:
        """Whether it is convolutions with at most a ReLU and a pool each, Flatten, dense layers with at most a ReLU."""
        if type(model) is not nn.Sequential or _has_hooks(model) or not all(_is_known(layer) for layer in model):
            return False
        letters = "".join(_LETTERS[type(layer)] for layer in model)
        own_weights = 2 * (letters.count("c") + letters.count("d")) == len(list(model.parameters()))
        return own_weights and _ORDER.fullmatch(letters) is not None

    def prepare(self, inputs: Tensor) -> list[_Convolution]:
        """Images (clients, batch, channels, rows, columns) in our layout, with their patches; valid until the next."""
        kept = self._blocks.by_shape
        key = (inputs.shape, inputs.dtype)
        images = inputs.permute(0, 2, 3, 4, 1)
        if key not in kept:
            # A cohort has blocks of two sizes at most; more would be another cohort's.
            if len(kept) >= 2:
                kept.clear()
            made: list[_Convolution] = []
            for layer, following in self._convolutions:
                entering = made[-1].result if made else inputs.new_empty(images.shape)
                made.append(_Convolution(entering, layer, following, is_first=not made))
            kept[key] = made
        layers = kept[key]
        layers[0].images.copy_(images)
        layers[0].cut()
        return layers

    def gradients(
        self,
        parameters: Sequence[Tensor],
        prepared: list[_Convolution],
        labels: Tensor,
        weights: Tensor,
        keys: Keys = None,
    ) -> list[Tensor]:
        """Of the cross-entropies (clients, batch) times ``weights``, by parameter; valid until the next call."""
        del keys
        own = [part.detach() for part in parameters]
        pairs = list(zip(own[::2], own[1::2], strict=True))
        convolved, dense = pairs[: len(prepared)], pairs[len(prepared) :]
        for index, (layer, (kernel, bias)) in enumerate(zip(prepared, convolved, strict=True)):
            if index:
                layer.cut()
            layer.forward(kernel, bias)
        images = prepared[-1].result
        gradient, gradients = self._dense(images.flatten(1, 3).transpose(1, 2), dense, labels, weights)
        gradient = gradient.transpose(1, 2).reshape(images.shape)
        for layer, (kernel, _) in zip(reversed(prepared), reversed(convolved), strict=True):
            gradients = [*layer.backward(kernel, gradient), *gradients]
            if layer.of_images is not None:
                gradient = layer.of_images
        return gradients

    def _dense(
        self, features: Tensor, dense: Sequence[tuple[Tensor, Tensor]], labels: Tensor, weights: Tensor
    ) -> tuple[Tensor, list[Tensor]]:
        """Gradients of the features (clients, batch, features) and of the dense layers' parameters."""
        entered = [features]
        for rectified, (matrix, bias) in zip(self._rectified, dense, strict=True):
            hidden = torch.baddbmm(bias.unsqueeze(1), entered[-1], matrix.transpose(1, 2))
            entered.append(hidden.clamp_min_(0) if rectified else hidden)
        gradient = loss_gradient(entered[-1], labels, weights)
        if self._rectified[-1]:
            gradient = _rectified_gradient(gradient, entered[-1])
        gradients: list[Tensor] = []
        for index in reversed(range(len(dense))):
            gradients = [torch.bmm(gradient.transpose(1, 2), entered[index]), gradient.sum(1), *gradients]
            gradient = torch.bmm(gradient, dense[index][0])
            if index and self._rectified[index - 1]:
                gradient = _rectified_gradient(gradient, entered[index])
        return gradient, gradients


def _is_known(layer: nn.Module) -> bool:
    if isinstance(layer, nn.Conv2d):
        height, width = layer.kernel_size
        plain = layer.stride == layer.dilation == (1, 1) and layer.groups == 1 and layer.padding_mode == "zeros"
        padded = isinstance(layer.padding, tuple) and layer.padding[0] == layer.padding[-1]
        return type(layer) is nn.Conv2d and height == width and plain and padded and layer.bias is not None
    if isinstance(layer, nn.MaxPool2d):
        twos = all(value in (2, (2, 2)) for value in (layer.kernel_size, layer.stride))
        still = layer.dilation in (1, (1, 1)) and not layer.return_indices
        return type(layer) is nn.MaxPool2d and twos and still and layer.padding in (0, (0, 0)) and not layer.ceil_mode
    if isinstance(layer, nn.Flatten):
        return type(layer) is nn.Flatten and (layer.start_dim, layer.end_dim) == (1, -1)
    if isinstance(layer, nn.Linear):
        return type(layer) is nn.Linear and layer.bias is not None
    return type(layer) is nn.ReLU


def _has_hooks(model: nn.Module) -> bool:
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return any(getattr(module, kind) for module in model.modules() for kind in kinds)
