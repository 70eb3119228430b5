"""Gradients of many small CNNs with batch norms at once, by hand: the clients side by side, as groups of channels.

Place: the fast way of `batched.py` for those models of `layers.py` that have a BatchNorm2d without running statistics.
A block is one batch of images that have all clients' channels, channels last: a convolution is one in groups, and a
norm is of each client's own channels as it is. PyTorch's own kernels are called as autograd would, without it. A
convolution takes 30 us before it begins, and 16 channels keep no kernel busy: of four clients each takes three quarters
of the time that one takes alone.

Guarantees (tests of the same name):
  norms_equal_autograd          each client's gradients equal those of the module itself, ties of a pool included.
  padding_is_in_no_statistics   what pads a batch is cut off before anything is computed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from gdpfed.training.clients.convolutions import rectified_gradient
from gdpfed.training.clients.layers import Keys, Layers, letters_of

__all__ = ["NormedModel"]

# The overloads by name: finding them takes as long as small work.
_pool = torch.ops.aten.max_pool2d_with_indices.default
_pool_backward = torch.ops.aten.max_pool2d_with_indices_backward.default
_norm_backward = torch.ops.aten.native_batch_norm_backward.default
_convolution_backward = torch.ops.aten.convolution_backward.default


class NormedModel:
    """An nn.Sequential of known layers with norms, for all clients of a block at once."""

    # Beyond, their memory leaves the caches.
    block_clients = 4
    takes_keys = False

    def __init__(self, model: nn.Sequential) -> None:
        self._layers = Layers(model)
        self._stages = [
            _Stage(layer, following, is_first=not place)
            for place, (layer, following) in enumerate(self._layers.convolutions)
        ]

    @staticmethod
    def supports(model: nn.Module) -> bool:
        """Whether `letters_of` knows it."""
        return letters_of(model) is not None

    def prepare(self, inputs: Tensor) -> Tensor:
        """Images (clients, batch, channels, rows, columns) as (batch, rows, columns, clients, channels)."""
        return inputs.permute(1, 3, 4, 0, 2).contiguous()

    def gradients(
        self, parameters: Sequence[Tensor], prepared: Tensor, labels: Tensor, weights: Tensor, keys: Keys = None
    ) -> list[Tensor]:
        """Of the cross-entropies (clients, batch) times ``weights``, by parameter; the end of a batch that has weight 0
        pads it."""
        del keys
        parameters = [part.detach() for part in parameters]
        sizes = _sizes(weights)
        if len(set(sizes)) == 1:
            return self._gradients(parameters, prepared[: sizes[0]], labels[:, : sizes[0]], weights[:, : sizes[0]])
        gradients = [torch.empty_like(part) for part in parameters]
        for size in sorted(set(sizes)):
            rows = torch.tensor([row for row, own in enumerate(sizes) if own == size], device=weights.device)
            found = self._gradients(
                [part[rows] for part in parameters],
                prepared[:size, :, :, rows],
                labels[rows, :size],
                weights[rows, :size],
            )
            for to, part in zip(gradients, found, strict=True):
                to[rows] = part
        return gradients

    def _gradients(
        self, parameters: Sequence[Tensor], prepared: Tensor, labels: Tensor, weights: Tensor
    ) -> list[Tensor]:
        """Of clients with batches of one size."""
        convolved, dense = self._layers.split(parameters)
        values = prepared.flatten(3).permute(0, 3, 1, 2)
        memories = []
        for stage, own in zip(self._stages, convolved, strict=True):
            values, memory = stage.forward(values, own)
            memories.append(memory)
        apart = values.view(len(values), len(weights), -1, *values.shape[2:]).transpose(0, 1)
        gradient, gradients = self._layers.dense(apart.flatten(2), dense, labels, weights)
        gradient = gradient.view(apart.shape).transpose(0, 1).flatten(1, 2)
        gradient = gradient.contiguous(memory_format=torch.channels_last)
        for stage, own, memory in zip(reversed(self._stages), reversed(convolved), reversed(memories), strict=True):
            gradient, of_own = stage.backward(gradient, own, memory)
            gradients = [*of_own, *gradients]
        return gradients


def _sizes(weights: Tensor) -> list[int]:
    """How many examples each client's batch has; on the meta device, which has shapes alone, all."""
    clients, batch = weights.shape
    return [batch] * clients if weights.is_meta else cast(list[int], weights.count_nonzero(1).tolist())


@dataclass(frozen=True, kw_only=True)
class _Memory:
    """Of a forward pass, for the way back."""

    images: Tensor
    kernel: Tensor
    summed: Tensor
    # Mean and inverse std of each channel.
    statistics: Sequence[Tensor]
    # What a pool took, and where it found the largest.
    pooled: Sequence[Tensor]
    result: Tensor


class _Stage:
    """A convolution of images (batch, clients * channels, rows, columns), and what follows it up to the next."""

    def __init__(self, layer: nn.Conv2d, following: Sequence[nn.Module], *, is_first: bool) -> None:
        self._norm = next((other for other in following if isinstance(other, nn.BatchNorm2d)), None)
        self._is_rectified = any(isinstance(other, nn.ReLU) for other in following)
        self._is_pooled = any(isinstance(other, nn.MaxPool2d) for other in following)
        self._padding = cast(tuple[int, int], layer.padding)
        # Gradients of the images, the kernel, the bias: a norm takes a bias away again.
        self._wanted = (not is_first, True, layer.bias is not None and self._norm is None)

    def forward(self, images: Tensor, own: Sequence[Tensor]) -> tuple[Tensor, _Memory]:
        """What the next layer gets. A ReLU comes after the pool, where there are a quarter of the numbers."""
        kernel = own[0].flatten(0, 1).contiguous(memory_format=torch.channels_last)
        bias = own[1].flatten() if self._wanted[2] else None
        result = summed = torch.convolution(images, kernel, bias, *self._how(len(own[0])))
        statistics: Sequence[Tensor] = ()
        pooled: Sequence[Tensor] = ()
        if self._norm is not None:
            scale, shift = own[-2].flatten(), own[-1].flatten()
            result, *statistics = torch.native_batch_norm(summed, scale, shift, None, None, True, 0.0, self._norm.eps)
        if self._is_pooled:
            largest, places = _pool(result, (2, 2))
            result, pooled = largest, (result, places)
        if self._is_rectified:
            result.clamp_min_(0)
        return result, _Memory(
            images=images, kernel=kernel, summed=summed, statistics=statistics, pooled=pooled, result=result
        )

    def backward(self, gradient: Tensor, own: Sequence[Tensor], memory: _Memory) -> tuple[Tensor, list[Tensor]]:
        """Gradients of the images, but for the first layer's, and of our ``own`` parameters."""
        if self._is_rectified:
            gradient = rectified_gradient(gradient, memory.result)
        if self._is_pooled:
            before, places = memory.pooled
            gradient = _pool_backward(gradient, before, (2, 2), (2, 2), (0, 0), (1, 1), False, places)
        of_norm: list[Tensor] = []
        if self._norm is not None:
            scale, constant = own[-2].flatten(), self._norm.eps
            gradient, *of_norm = _norm_backward(
                gradient, memory.summed, scale, None, None, *memory.statistics, True, constant, (True, True, True)
            )
        of_images, of_kernel, of_bias = _convolution_backward(
            gradient, memory.images, memory.kernel, [len(memory.kernel)], *self._how(len(own[0])), self._wanted
        )
        found = [of_kernel, *([of_bias] if self._wanted[2] else []), *of_norm]
        if len(found) < len(own):
            found.insert(1, torch.zeros_like(own[1]))
        return of_images, [part.view(mine.shape) for part, mine in zip(found, own, strict=True)]

    def _how(self, clients: int) -> tuple[Any, ...]:
        """Stride, padding, dilation; not transposed; groups."""
        return (1, 1), self._padding, (1, 1), False, (0, 0), clients
