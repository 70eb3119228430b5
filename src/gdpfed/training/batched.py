"""Many clients' models in one pass.

Place: below the cohort trainer. A model becomes a function from stacked parameters (clients, ...) and stacked batches
(clients, batch, ...) to logits (clients, batch, classes). Clients do not mix, so one backward pass of the summed losses
gives every client's own gradient.

Three ways to do it, same mathematics:
  layers   an nn.Sequential of Conv2d, ReLU, MaxPool2d(2), Flatten and Linear. A convolution is one matrix product for
           each client over all patches of its batch; patches of a batch that stays are cut once; pooling is a maximum
           of four views, with the bias and the ReLU after it, where there is a quarter of the numbers.
  vmap     any other nn.Module, by torch.func.
  loop     what torch.func cannot batch (nn.LSTM, nn.GRU): one client after the other.

Guarantees (tests of the same name):
  batched_equals_single         logits and gradients equal those of the module itself, client by client.
  unusual_models_are_not_fast   a Sequential that only looks like the known ones is run as the module runs it.
  threads_do_not_meet           several threads may call one batched model; the module itself is never touched.
  random_layers_are_refused     dropout would draw in the order of the work.
"""

import copy
import threading
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from gdpfed.errors import InputError

__all__ = ["BatchedModel", "batched_model"]

# (stacked parameters, stacked inputs) -> logits
BatchedModel = Callable[[Sequence[Tensor], Tensor], Tensor]


def batched_model(model: nn.Module) -> BatchedModel:
    """The fastest way to run many copies of ``model`` at once."""
    if _Layers.supports(model):
        return _Layers(model)
    return _AnyModule(model)


class _AnyModule:
    """Any module, by vmap, or one client after the other where vmap cannot."""

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

    def __call__(self, parameters: Sequence[Tensor], inputs: Tensor) -> Tensor:
        if not hasattr(self._own, "model"):
            self._own.model = copy.deepcopy(self._pattern)
        if not self._one_by_one:
            try:
                return vmap(self._single)(tuple(parameters), inputs)
            except RuntimeError as error:
                if "randomness" in str(error):
                    raise InputError(
                        "the model draws random numbers in the order of the work, so the same seed would not give the "
                        "same model: take the random part out"
                    ) from error
                if "Batching rule not implemented" not in str(error):
                    raise
                self._one_by_one = True
        rows = zip(*(part.unbind() for part in parameters), strict=True)
        return torch.stack([self._single(row, batch) for row, batch in zip(rows, inputs.unbind(), strict=True)])

    def _single(self, parameters: tuple[Tensor, ...], inputs: Tensor) -> Tensor:
        named = dict(zip(self._names, parameters, strict=True))
        return cast(Tensor, functional_call(self._own.model, named, (inputs,)))


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

    The first of equal values takes the gradient, as in PyTorch. The matrix products are arranged as the library does
    them fastest: few rows, many columns.
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


_convolve = cast(Callable[..., Tensor], _Convolution.apply)


class _Layers:
    """An nn.Sequential of known layers for all clients at once, laid out (clients, channels, batch, rows, columns)."""

    def __init__(self, model: nn.Module) -> None:
        # Not model.children(), which leaves out a layer's second appearance.
        self._layers = list(cast(nn.Sequential, model))

    @staticmethod
    def supports(model: nn.Module) -> bool:
        """Whether every layer is known, in an order that is: convolutions first, then Flatten, then dense layers."""
        if type(model) is not nn.Sequential or not len(model) or type(model[0]) is not nn.Conv2d:
            return False
        kinds = [type(layer) for layer in model]
        flat = kinds.index(nn.Flatten) if nn.Flatten in kinds else len(kinds)
        ordered = nn.Linear not in kinds[:flat] and not {nn.Conv2d, nn.MaxPool2d} & set(kinds[flat:])
        own_weights = 2 * (kinds.count(nn.Conv2d) + kinds.count(nn.Linear)) == len(list(model.parameters()))
        return ordered and own_weights and not _has_hooks(model) and all(_is_known(layer) for layer in model)

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
                hidden = _convolve(hidden, next(given), next(given), patches, pooled, rectified)
            elif isinstance(layer, nn.ReLU):
                hidden = torch.relu(hidden)
            elif isinstance(layer, nn.MaxPool2d):
                # Not torch.maximum, which gives each of two equal values half of the gradient.
                planes = nn.functional.max_pool2d(hidden.flatten(0, 1), 2)
                hidden = planes.view(*hidden.shape[:2], *planes.shape[1:])
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
        kept: dict[tuple[int, int], tuple[Tensor, Tensor]] = getattr(inputs, "_gdpfed_patches", {})
        if (size, pad) not in kept:
            images = nn.functional.pad(inputs, (pad,) * 4).transpose(1, 2)
            kept = {(size, pad): (images, _patches(images, size))}
            inputs._gdpfed_patches = kept  # type: ignore[attr-defined]
        return kept[size, pad]


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
