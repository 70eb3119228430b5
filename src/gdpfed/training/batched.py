"""Many clients' models in one pass.

Place: below the cohort trainer. A model becomes a function from stacked parameters (clients, ...) and stacked batches (clients, batch, ...) to
logits (clients, batch, classes). Clients do not mix, so one backward pass of the summed losses gives every client's own gradient.

Two ways to do it, same mathematics:
  layers   an nn.Sequential of Conv2d, ReLU, MaxPool2d(2), Flatten and Linear. A convolution is one matrix product for
           each client over all patches of its batch; patches of a batch that stays are cut once; pooling is a maximum of
           four views, with the bias and the ReLU after it, where there is a quarter of the numbers.
  vmap     any other nn.Module, by torch.func.

Guarantees (tests of the same name):
  batched_equals_single      logits and gradients equal those of the module itself, client by client.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

__all__ = ["BatchedModel", "batched_model"]

# (stacked parameters, stacked inputs) -> logits
BatchedModel = Callable[[Sequence[Tensor], Tensor], Tensor]


def batched_model(model: nn.Module) -> BatchedModel:
    """The fastest way to run many copies of ``model`` at once."""
    if _Layers.supports(model):
        return _Layers(model)
    names = [name for name, _ in model.named_parameters()]

    def single(parameters: Sequence[Tensor], inputs: Tensor) -> Tensor:
        logits: Tensor = functional_call(model, dict(zip(names, parameters, strict=True)), (inputs,))
        return logits

    every = vmap(single)
    return lambda parameters, inputs: every(tuple(parameters), inputs)


def _patches(images: Tensor, size: int) -> Tensor:
    """(clients, channels, batch, height, width) -> (clients, batch * positions, size * size * channels).

    Channels last while cutting: a patch is then copied in runs of size * channels numbers.
    """
    clients, channels, batch, height, width = images.shape
    positions = batch * (height - size + 1) * (width - size + 1)
    cut = images.permute(0, 2, 3, 4, 1).contiguous().unfold(2, size, 1).unfold(3, size, 1)
    return cut.permute(0, 1, 2, 3, 5, 6, 4).reshape(clients, positions, size * size * channels)


def _quarters(images: Tensor) -> list[Tensor]:
    return [images[..., row::2, column::2] for row in (0, 1) for column in (0, 1)]


class _Convolution(torch.autograd.Function):
    """Convolution, then 2x2 maximum if ``pooled``, then bias, then ReLU if ``rectified``.

    The first of equal values takes the gradient, as in PyTorch. The matrix products are arranged as the library does them fastest: few rows,
    many columns.
    """

    @staticmethod
    def forward(
        context: Any,
        images: Tensor,
        weights: Tensor,
        bias: Tensor,
        patches: Tensor | None,
        pooled: bool,
        rectified: bool,
    ) -> Tensor:
        clients, _, batch, height, width = images.shape
        outputs, size = weights.shape[1], weights.shape[-1]
        cut = _patches(images, size) if patches is None else patches
        rows = weights.permute(0, 1, 3, 4, 2).reshape(clients, outputs, -1)
        summed = torch.bmm(rows, cut.transpose(1, 2))
        summed = summed.view(clients, outputs, batch, height - size + 1, width - size + 1)
        largest = summed
        if pooled:
            one, two, three, four = _quarters(summed)
            largest = torch.maximum(torch.maximum(one, two), torch.maximum(three, four))
        result = largest + bias[:, :, None, None, None]
        if rectified:
            result.clamp_min_(0)
        context.save_for_backward(cut, weights, summed, largest, result)
        context.geometry = images.shape, pooled, rectified
        return result

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        cut, weights, summed, largest, result = context.saved_tensors
        (clients, channels, batch, height, width), pooled, rectified = context.geometry
        outputs, size = weights.shape[1], weights.shape[-1]
        of_result = gradients[0] * (result > 0) if rectified else gradients[0]
        of_bias = of_result.sum((2, 3, 4))
        of_summed = of_result
        if pooled:
            of_summed = torch.empty_like(summed)
            left = of_result
            for place, (values, slot) in enumerate(zip(_quarters(summed), _quarters(of_summed), strict=True)):
                if place == 3:
                    slot.copy_(left)
                else:
                    torch.mul(left, values == largest, out=slot)
                    left = left - slot
        flat = of_summed.reshape(clients, outputs, -1)
        of_rows = torch.bmm(flat, cut).view(clients, outputs, size, size, channels)
        of_images = None
        if context.needs_input_grad[0]:
            rows, columns = height - size + 1, width - size + 1
            of_cut = torch.bmm(weights.flatten(2).transpose(1, 2), flat)
            of_cut = of_cut.view(clients, channels, size, size, batch, rows, columns)
            of_images = flat.new_zeros(clients, channels, batch, height, width)
            for row in range(size):
                for column in range(size):
                    of_images[..., row : row + rows, column : column + columns] += of_cut[:, :, row, column]
        return of_images, of_rows.permute(0, 1, 4, 2, 3), of_bias, None, None, None


class _Layers:
    """An nn.Sequential of known layers for all clients at once, in the layout (clients, channels, batch, height, width)."""

    def __init__(self, model: nn.Module) -> None:
        self._layers = list(model.children())

    @staticmethod
    def supports(model: nn.Module) -> bool:
        """Whether every layer is known; the first must be a convolution."""
        if not isinstance(model, nn.Sequential) or not len(model) or not isinstance(model[0], nn.Conv2d):
            return False
        return all(_is_known(layer) for layer in model)

    def __call__(self, parameters: Sequence[Tensor], inputs: Tensor) -> Tensor:
        given = iter(parameters)
        hidden = inputs
        images = True
        place = 0
        while place < len(self._layers):
            layer = self._layers[place]
            kinds = tuple(type(following) for following in self._layers[place + 1 : place + 3])
            place += 1
            if isinstance(layer, nn.Conv2d):
                pad = int(layer.padding[0])
                patches = None
                if place == 1:
                    hidden, patches = self._cut_once(inputs, layer.kernel_size[0], pad)
                elif pad:
                    hidden = nn.functional.pad(hidden, (pad,) * 4)
                even = all((side - layer.kernel_size[0] + 1) % 2 == 0 for side in hidden.shape[3:])
                pooled = kinds == (nn.ReLU, nn.MaxPool2d) and even
                rectified = kinds[:1] == (nn.ReLU,)
                place += 2 if pooled else int(rectified)
                hidden = _Convolution.apply(hidden, next(given), next(given), patches, pooled, rectified)
            elif isinstance(layer, nn.ReLU):
                hidden = torch.relu(hidden)
            elif isinstance(layer, nn.MaxPool2d):
                even_part = hidden[..., : hidden.shape[3] // 2 * 2, : hidden.shape[4] // 2 * 2]
                one, two, three, four = _quarters(even_part)
                hidden = torch.maximum(torch.maximum(one, two), torch.maximum(three, four))
            else:
                if images:
                    hidden, images = hidden.transpose(1, 2).flatten(2), False
                if isinstance(layer, nn.Linear):
                    weights, bias = next(given), next(given)
                    hidden = torch.baddbmm(bias.unsqueeze(1), hidden, weights.transpose(1, 2))
        return hidden

    @staticmethod
    def _cut_once(inputs: Tensor, size: int, pad: int) -> tuple[Tensor, Tensor]:
        """Padded inputs and their patches: kept on the tensor, for a batch that is used in several steps."""
        kept: tuple[Tensor, Tensor] | None = getattr(inputs, "_gdpfed_patches", None)
        if kept is None:
            images = nn.functional.pad(inputs, (pad,) * 4).transpose(1, 2)
            kept = images, _patches(images, size)
            inputs._gdpfed_patches = kept  # type: ignore[attr-defined]
        return kept


def _is_known(layer: nn.Module) -> bool:
    if isinstance(layer, nn.Conv2d):
        height, width = layer.kernel_size
        plain = layer.stride == layer.dilation == (1, 1) and layer.groups == 1 and layer.padding_mode == "zeros"
        padded = isinstance(layer.padding, tuple) and layer.padding[0] == layer.padding[-1]
        return height == width and plain and padded and layer.bias is not None
    if isinstance(layer, nn.MaxPool2d):
        twos = all(value in (2, (2, 2)) for value in (layer.kernel_size, layer.stride))
        return twos and layer.padding in (0, (0, 0)) and not layer.ceil_mode
    if isinstance(layer, nn.Linear):
        return layer.bias is not None
    return isinstance(layer, nn.ReLU | nn.Flatten)
