"""Features that depend on no client's data: a scattering transform with fixed filters, normalised image by image, and
the last characters of a text.

Place: the first, parameter-free part of a model (`models.scattering_linear`, `models.char_linear`): a few trained
numbers on good features carry less noise than many on raw pixels. Nothing here is fitted to any data, so it costs no
privacy and is the same at every client.

An image, grey, is convolved with wavelets of two scales and eight angles, its modulus taken, convolved again with
those of the larger scale, and each result averaged over 4 x 4 pixels: 1 + 16 + 64 maps. Maps are then brought to mean 0
and variance 1 in groups of three, over one image alone. Of a coloured image this is done with the mean of its channels,
and colours are added as averages alone: each channel but the first less the mean of those before it, one map each. To
scatter all channels would make three times the parameters, which carry three times the noise variance. `Mirrored`
and `Centred` know more of what is in the picture.

Features are rounded to 16 bits, so that a simulation may compute them once for all examples and keep them
(`computed_once`), while a client that computes its own at every call gets the same numbers.

Guarantees (tests of the same name):
  filters_have_no_mean           a constant image has features that are zero but for the first map.
  features_are_each_images_own   the same bits whoever else is in the batch.
  contrast_changes_little        half the contrast, and another brightness, change an image's features little.
  mirror_images_are_the_same     to `Mirrored`.
  edges_count_less               to `Centred`; the middle is as it was.
  colours_are_maps_of_their_own  a grey image in three channels has the features of one channel, and zeros.
  computed_once_is_the_same      the rest of the model on kept features gives what the whole model gives on images.
  filters_follow_the_images      to their device.
  a_frozen_part_is_computed_once of a model of one's own, with the result of the whole model.
"""

import contextlib
import copy
import dataclasses
import functools
import hashlib
import math
import os
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from gdpfed.errors import InputError
from gdpfed.files import whole_file
from gdpfed.privacy.cache import cache_file
from gdpfed.tasks.datasets import Dataset

__all__ = [
    "Centred",
    "Fixed",
    "KeptFeatures",
    "LastCharacters",
    "Mirrored",
    "Scattering",
    "computed_once",
    "fixed_once",
]

# Raised when the features change: those kept on disk are then made again.
_VERSION = 1

_SCALES, _ANGLES = 2, 8
_STRIDE = 2**_SCALES
# Maps of an image.
_MAPS: int = 1 + _SCALES * _ANGLES + _ANGLES**2
_GROUP = 3
# What is left of features at an edge, and beside it, of `Centred`: chosen on SVHN's held-out images.
_EDGE = (0.3, 0.7)
# Images at a time: more would leave the caches.
_BATCH = 8
# Examples at a time, of a frozen part of one's own.
_AT_ONCE = 250


class Fixed(nn.Module):
    """The first part of a model, without parameters: an example's features are its own, and may be kept.

    ``version`` is what kept features are known by, beside their inputs.
    """

    version: object

    def forward(self, inputs: Tensor) -> Tensor:
        """Each example's features; no gradient goes through."""
        return self.rounded(inputs).float()

    def rounded(self, inputs: Tensor) -> Tensor:
        """The same in 16 bits, as they are kept."""
        raise NotImplementedError

    def length(self, shape: Sequence[int]) -> int:
        """How many features an example of this shape has."""
        raise NotImplementedError


class Scattering(Fixed):
    """Images (batch, channels, height, width) to features (batch, (80 + channels) * height/4 * width/4)."""

    version: object = _VERSION

    def length(self, shape: Sequence[int]) -> int:
        """Of square images (channels, side, side)."""
        return self.num_features(shape[-1], shape[0])

    def rounded(self, images: Tensor) -> Tensor:
        """The features of images, some at a time."""
        # Into one piece of memory: many small pieces, kept between large ones that are freed, would leave gaps.
        length = self.num_features(images.shape[-1], images.shape[1])
        features = torch.empty(len(images), length, dtype=torch.float16, device=images.device)
        with torch.no_grad():
            for start in range(0, len(images), _BATCH):
                features[start : start + _BATCH] = self._maps(images[start : start + _BATCH]).flatten(1)
        return features

    @staticmethod
    def num_features(side: int, channels: int = 1) -> int:
        """The length of the features of square images."""
        across: int = side // _STRIDE
        return (_MAPS + channels - 1) * across * across

    def _maps(self, images: Tensor) -> Tensor:
        """(batch, channels, height, width) -> (batch, maps, height/4, width/4)."""
        scattered = _scattered(images.mean(1))
        maps = [nn.functional.group_norm(scattered, scattered.shape[1] // _GROUP)]
        if images.shape[1] > 1:
            maps.append(nn.functional.group_norm(_colours(images), 1))
        return torch.cat(maps, dim=1)


class Mirrored(Scattering):
    """The mean of an image's features and its mirror image's: for pictures of things that may as well look the other
    way, not for letters and digits. What is learnt of one side is known of both."""

    version = (_VERSION, "mirrored")

    def _maps(self, images: Tensor) -> Tensor:
        return (super()._maps(images) + super()._maps(images.flip(-1))) / 2


class Centred(Scattering):
    """The same features, less of them towards the left and right edges: for things in the middle that have others
    beside them, as digits of a number have."""

    version = (_VERSION, "centred")

    def _maps(self, images: Tensor) -> Tensor:
        maps = super()._maps(images)
        return maps * _window(maps.shape[-1]).to(maps.device)


class LastCharacters(nn.Module):
    """Text (batch, length) to which characters its last ``count`` are (batch, count * alphabet): ones and zeros."""

    def __init__(self, *, alphabet: int, count: int) -> None:
        super().__init__()
        self.alphabet = alphabet
        self.count = count

    def forward(self, characters: Tensor) -> Tensor:
        """Each text's features."""
        return nn.functional.one_hot(characters[:, -self.count :], self.alphabet).flatten(1).float()


class KeptFeatures(nn.Module):
    """Stands in the place of a model's `Fixed` part where features come instead of examples."""

    def forward(self, features: Tensor) -> Tensor:
        """As the rest of the model wants them."""
        return features.float()


def computed_once(dataset: Dataset, model: nn.Module) -> tuple[Dataset, nn.Module]:
    """Features in place of examples, and a model for them with the same parameters by the same names; or both as they
    are, if the model has no fixed part."""
    fixed = _fixed(model)
    if fixed is None:
        return dataset, model
    featured = dataclasses.replace(
        dataset, train_inputs=_kept(fixed, dataset.train_inputs), test_inputs=_kept(fixed, dataset.test_inputs)
    )
    return featured, _rest(model)


def fixed_once(model: nn.Module, *inputs: Tensor) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """The model without its fixed first part, and what that part makes of each of the inputs; or all as they are.

    The fixed part of an nn.Sequential is a `Fixed`, or a first child all of whose parameters are frozen and in which
    nothing is random. What is left shares its parameters with the model.
    """
    fixed, frozen = _fixed(model), _frozen(model)
    if fixed is not None:
        return _rest(model), tuple(torch.from_numpy(_kept(fixed, held.numpy())) for held in inputs)
    if frozen is None:
        return model, inputs
    part = copy.deepcopy(frozen).eval()
    with torch.no_grad():
        computed = [[part(held[at : at + _AT_ONCE]) for at in range(0, len(held), _AT_ONCE)] for held in inputs]
    return _rest(model), tuple(torch.cat(parts) if parts else torch.empty(0) for parts in computed)


def _fixed(model: nn.Module) -> Fixed | None:
    first = model[0] if isinstance(model, nn.Sequential) and len(model) > 1 else None
    return first if isinstance(first, Fixed) else None


def _frozen(model: nn.Module) -> nn.Module | None:
    if type(model) is not nn.Sequential or len(model) < 2:
        return None
    first: nn.Module = model[0]
    parameters = list(first.parameters())
    is_frozen = bool(parameters) and not any(parameter.requires_grad for parameter in parameters)
    # Dropout in training mode would be lost.
    draws = any(isinstance(layer, nn.modules.dropout._DropoutNd) and layer.training for layer in first.modules())
    return first if is_frozen and not draws else None


def _rest(model: nn.Module) -> nn.Sequential:
    named = OrderedDict(model.named_children())
    named[next(iter(named))] = KeptFeatures()
    return nn.Sequential(named)


def _kept(fixed: Fixed, inputs: NDArray[Any]) -> NDArray[Any]:
    """From the cache's folder, or computed and put there; a folder that cannot be written costs time only."""
    beside = cache_file()
    if beside is None:
        return fixed.rounded(torch.from_numpy(inputs)).numpy()
    content = hashlib.sha256(np.ascontiguousarray(inputs).data)
    content.update(repr((fixed.version, inputs.shape, torch.__version__)).encode())
    path = beside.parent / "features" / f"{content.hexdigest()[:32]}.npy"
    with contextlib.suppress(OSError, ValueError):
        # Copy on write: PyTorch wants an array that it might write to.
        features: NDArray[Any] = np.load(path, mmap_mode="c")
        if features.shape == (len(inputs), fixed.length(inputs.shape[1:])):
            return features
    features = fixed.rounded(torch.from_numpy(inputs)).numpy()
    # Several processes may save the same, so each has a part of its own.
    part = path.with_name(f"{path.name}.{os.getpid()}")
    with contextlib.suppress(OSError, InputError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(part) as file:
            np.save(file, features)
        part.replace(path)
    return features


def _window(columns: int) -> Tensor:
    """1 in the middle, less in the two columns at either edge."""
    edge = torch.tensor(_EDGE)
    return torch.cat([edge, torch.ones(columns - 2 * len(edge)), edge.flip(0)])


def _scattered(images: Tensor) -> Tensor:
    """(batch, height, width) -> (batch, maps, height/4, width/4), before normalisation."""
    padded = _padded(images.unsqueeze(1))
    wavelets = _wavelets(*padded.shape[-2:], images.device)
    first = torch.fft.ifft2(torch.fft.fft2(padded) * wavelets).abs()
    fine = torch.fft.fft2(first[:, :_ANGLES]).unsqueeze(2)
    second = torch.fft.ifft2(fine * wavelets[_ANGLES:]).abs().flatten(1, 2)
    return _averaged(torch.cat([padded, first, second], dim=1))


def _colours(images: Tensor) -> Tensor:
    """(batch, channels, height, width) -> (batch, channels - 1, height/4, width/4), before normalisation."""
    differences = [images[:, number] - images[:, :number].mean(1) for number in range(1, images.shape[1])]
    return _averaged(_padded(torch.stack(differences, dim=1)))


def _padded(images: Tensor) -> Tensor:
    return nn.functional.pad(images, (_STRIDE,) * 4, mode="reflect")


def _averaged(maps: Tensor) -> Tensor:
    rows, columns = maps.shape[-2:]
    return _averages(rows, maps.device) @ maps @ _averages(columns, maps.device).T


@functools.cache
def _wavelets(rows: int, columns: int, device: torch.device) -> Tensor:
    """The spectra of Morlet wavelets (scales * angles, rows, columns), finest first; real, since they are symmetric."""
    spectra = [
        _morlet(rows, columns, scale=2**scale, angle=math.pi * turn / _ANGLES)
        for scale in range(_SCALES)
        for turn in range(_ANGLES)
    ]
    return torch.stack(spectra).float().to(device)


def _morlet(rows: int, columns: int, *, scale: int, angle: float) -> Tensor:
    """A Gaussian around a frequency, less as much of one around 0 as takes its mean away; twice as long across."""
    width, frequency, slant = 0.8 * scale, 0.75 * math.pi / scale, 4 / _ANGLES

    def gaussian(centre: float) -> Tensor:
        # Frequencies repeat every 2 pi: what lies beyond comes back.
        total = torch.zeros(rows, columns, dtype=torch.float64)
        for down in range(-2, 3):
            for right in range(-2, 3):
                y = 2 * math.pi * (torch.fft.fftfreq(rows, dtype=torch.float64) + down).unsqueeze(1)
                x = 2 * math.pi * (torch.fft.fftfreq(columns, dtype=torch.float64) + right).unsqueeze(0)
                along = x * math.cos(angle) + y * math.sin(angle) - centre
                across = -x * math.sin(angle) + y * math.cos(angle)
                total += torch.exp(-0.5 * width**2 * (along**2 + (across / slant) ** 2))
        return total

    around, base = gaussian(frequency), gaussian(0.0)
    return around - around[0, 0] / base[0, 0] * base


@functools.cache
def _averages(length: int, device: torch.device) -> Tensor:
    """(length / 4 - 2, length): Gaussian averages around every fourth pixel of what is inside the padding."""
    width = 0.8 * 2 ** (_SCALES - 1)
    pixels = torch.arange(length, dtype=torch.float64)
    centres = _STRIDE * torch.arange(1, length // _STRIDE - 1, dtype=torch.float64) + (_STRIDE - 1) / 2
    weights = torch.exp(-0.5 * ((pixels - centres.unsqueeze(1)) / width) ** 2)
    return (weights / weights.sum(1, keepdim=True)).float().to(device)
