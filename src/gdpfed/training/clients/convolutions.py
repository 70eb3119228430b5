"""A convolution of many clients' images with all that follows it, forward and backward by hand, and its memory.

Place: the inside of `layers.py`, which says how the work is arranged.

Guarantees: those of `layers.py`.
"""

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

__all__ = ["Convolution", "rectified_gradient"]


def rectified_gradient(gradient: Tensor, result: Tensor) -> Tensor:
    """Of what a ReLU made ``result`` of: nothing passes where that is zero."""
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


class Convolution:
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

    def forward(self, own: Sequence[Tensor]) -> None:
        """Fills ``result`` (clients, outputs, rows, columns, batch) by our ``own`` parameters."""
        kernel, *bias = own
        torch.bmm(kernel.flatten(2), self._patches, out=self._summed)
        if self._pooled:
            self._pool.forward(self._quarters)
        if bias:
            self.result += bias[0][:, :, None, None, None]
        if self._rectified:
            self.result.clamp_min_(0)

    def backward(self, own: Sequence[Tensor], gradient: Tensor) -> list[Tensor]:
        """Gradients of our ``own`` parameters; fills ``of_images``, where there is one."""
        kernel, *bias = own
        if self._rectified:
            gradient = rectified_gradient(gradient, self.result)
        of_bias = [gradient.sum((2, 3, 4)) for _ in bias]
        self._spread(gradient)
        torch.bmm(self._of_summed, self._patches_by_column, out=self._of_kernel)
        self._back_to_images(kernel.flatten(2), self._of_summed)
        return [self._of_kernel.view(kernel.shape), *of_bias]

    def _spread(self, gradient: Tensor) -> None:
        """Fills ``_of_summed``: through the pool, if there is one."""
        if self._pooled:
            self._pool.backward(gradient, self._of_quarters)
        else:
            self._of_summed.view(gradient.shape).copy_(gradient)

    def _back_to_images(self, kernel: Tensor, of_summed: Tensor) -> None:
        if self.of_images is not None:
            torch.bmm(kernel.transpose(1, 2), of_summed, out=self._of_patches)
            self._of_padded.zero_()
            for to, part in self._additions:
                to += part


def _quarters(values: Tensor, rows: int, columns: int, batch: int, by_quarter: bool) -> tuple[Tensor, ...]:
    """Four views of (clients, outputs, positions * batch): the values that meet in each pool."""
    clients, outputs, _ = values.shape
    if by_quarter:
        return values.view(clients, outputs, 4, rows // 2, columns // 2, batch).unbind(2)
    whole = values.view(clients, outputs, rows, columns, batch)[:, :, : rows // 2 * 2, : columns // 2 * 2]
    return tuple(whole[:, :, row::2, column::2] for row in (0, 1) for column in (0, 1))
