"""EfficientNet-Lite0 without its last layer: images to 1,280 features, by weights that others learnt from ImageNet.

Place: below `public.PublicImage`. The network is a stem, sixteen blocks (widen, filter each channel, narrow; added to
its input where the shape allows) and a head, each with ReLU6, then the mean over all pixels. It is written again here
because the libraries that have it (timm, torchvision) need a torchvision that matches torch's build to the digit, for
which there is no CPU build on PyPI; and because nothing is trained: normalisation is folded into the filters when they
are read, which leaves forty lines.

Guarantees (tests of the same name):
  folding_changes_nothing   filters with the normalisation in them give what both give one after the other.
  borders_are_tensorflows   which pads more on the right and below: the weights were learnt so.
  other_weights_are_refused   a file without the network's layers is an `InputError`.
"""

import io
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from gdpfed.errors import InputError

__all__ = ["NUM_FEATURES", "Network", "read_network"]

NUM_FEATURES = 1280
# For each block the stride of its filters; a widened block of the same shape is added to its input.
_STRIDES = (1, 2, 1, 2, 1, 2, 1, 1, 1, 1, 1, 2, 1, 1, 1, 1)
# TensorFlow's, under the root of the normalisation.
_LEAST_VARIANCE = 1e-3


@dataclass(frozen=True, kw_only=True, eq=False)
class _Filters:
    """A convolution with its normalisation folded in."""

    weight: Tensor
    bias: Tensor
    stride: int
    is_rectified: bool

    def __call__(self, maps: Tensor) -> Tensor:
        size, kernel = maps.shape[-1], self.weight.shape[-1]
        missing = max((-(-size // self.stride) - 1) * self.stride + kernel - size, 0)
        before = missing // 2
        padded = functional.pad(maps, (before, missing - before) * 2) if missing else maps
        groups = maps.shape[1] // self.weight.shape[1]
        made = functional.conv2d(padded, self.weight, self.bias, self.stride, groups=groups)
        return functional.hardtanh_(made, 0.0, 6.0) if self.is_rectified else made


@dataclass(frozen=True, kw_only=True, eq=False)
class Network:
    """Square images (batch, 3, side, side), pixels from about -1 to 1, to features (batch, 1280)."""

    stem: _Filters
    blocks: tuple[tuple[_Filters, ...], ...]
    head: _Filters

    def __call__(self, images: Tensor) -> Tensor:
        """Each image's features."""
        maps = self.stem(images)
        for block in self.blocks:
            made = maps
            for filters in block:
                made = filters(made)
            maps = made + maps if made.shape == maps.shape and len(block) == 3 else made
        return self.head(maps).mean((2, 3))


def read_network(content: bytes) -> Network:
    """The network with the weights of a file that `torch.save` wrote; nothing in it is run."""
    try:
        weights = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
        return network(weights)
    except (RuntimeError, ValueError, KeyError, TypeError, EOFError, OSError) as error:
        raise InputError(f"expected the weights of EfficientNet-Lite0, got something else ({error!r})") from None
    except Exception as error:
        # torch raises the error of pickle, which need not be imported for that.
        raise InputError(f"expected a file of weights by torch.save, got something else ({error!r})") from None


def network(weights: Mapping[str, Tensor]) -> Network:
    """The network with these weights, by the names of efficientnet_lite_pytorch."""
    blocks = []
    for number, stride in enumerate(_STRIDES):
        at = f"_blocks.{number}._"
        # The first block does not widen.
        widen = [_filters(weights, f"{at}expand_conv", f"{at}bn0")] if number else []
        filters = _filters(weights, f"{at}depthwise_conv", f"{at}bn1", stride=stride)
        blocks.append((*widen, filters, _filters(weights, f"{at}project_conv", f"{at}bn2", is_rectified=False)))
    return Network(
        stem=_filters(weights, "_conv_stem", "_bn0", stride=2),
        blocks=tuple(blocks),
        head=_filters(weights, "_conv_head", "_bn1"),
    )


def _filters(
    weights: Mapping[str, Tensor], convolution: str, norm: str, *, stride: int = 1, is_rectified: bool = True
) -> _Filters:
    scale, shift, mean, variance = (
        weights[f"{norm}.{name}"].double() for name in ("weight", "bias", "running_mean", "running_var")
    )
    factor = scale / (variance + _LEAST_VARIANCE).sqrt()
    return _Filters(
        weight=(weights[f"{convolution}.weight"].double() * factor[:, None, None, None]).float(),
        bias=(shift - mean * factor).float(),
        stride=stride,
        is_rectified=is_rectified,
    )
