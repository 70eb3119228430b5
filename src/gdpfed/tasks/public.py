"""Features by networks that were learnt from public data, and are trained no further.

Place: the first part of the models `public-text` and `public-image`, in the place that `features.Scattering` has in
others. Clients train a dense layer on them; nobody's budget pays for what the public data gave. `catalogue.toml` names
the data, and every result says it (`catalogue.public_data_of`).

The last 40 characters of a text go through recurrent units (`tools/public_text.py` made them); the last state is the
features, in the 77 directions in which the network's own output tells its 78 characters apart; the dense layer starts
as that output. All 384 units would be five times the parameters, and as much more noise. Images are enlarged to
96 pixels and go through EfficientNet-Lite0 (`efficientnet.py`); features have length 1.

Networks are plain values that are read when they are first used: a model has no parameters but those that clients
train, and none leaves with an update. A batch is filled up to a fixed size, since products of other shapes round
otherwise.

Guarantees (tests of the same name):
  features_are_each_examples_own   the same bits whoever else is in the batch.
  states_are_the_networks          of text: what PyTorch's own layer gives for the same weights.
  image_features_have_length_one   up to rounding, whatever the image.
  another_alphabet_is_refused      text of an alphabet of another size, and images that are not in colour.
"""

import functools
import io

import numpy as np
import torch
from torch import Tensor, nn

from gdpfed.errors import InputError
from gdpfed.tasks import efficientnet
from gdpfed.tasks.catalogue import source_of
from gdpfed.tasks.datasets import NORMALISATION
from gdpfed.tasks.features import Fixed
from gdpfed.tasks.sources import obtain

__all__ = ["PublicImage", "PublicText", "public_head"]

# Examples at a time.
_TEXTS, _IMAGES = 128, 8
# The characters that the network reads before it is asked for the next: the last of a window.
_CONTEXT = 40
# On the state, so that features are about as long as 1.
_SCALE = 0.1
_SIDE = 96
# What EfficientNet-Lite0 subtracts from a byte, and divides it by.
_BYTE_MEAN, _BYTE_STD = 127.0, 128.0


class _InBatches(Fixed):
    """Features of a fixed number of examples at a time."""

    _at_once: int

    def rounded(self, inputs: Tensor) -> Tensor:
        """In one piece of memory."""
        made = torch.empty(len(inputs), self.length(inputs.shape[1:]), dtype=torch.float16)
        with torch.no_grad():
            for start in range(0, len(inputs), self._at_once):
                part = inputs[start : start + self._at_once]
                whole = torch.cat([part, part[-1:].expand(self._at_once - len(part), *part.shape[1:])])
                made[start : start + len(part)] = self._features(whole)[: len(part)]
        return made

    def _features(self, inputs: Tensor) -> Tensor:
        raise NotImplementedError


class PublicText(_InBatches):
    """Text (batch, length), as places in the network's alphabet, to what its last state says (batch, 77)."""

    _at_once = _TEXTS

    @property
    def version(self) -> str:  # type: ignore[override]
        """The digest of the weights, and how many characters they are shown."""
        return f"{_digest('public-text')} {_CONTEXT} {_SCALE}"

    def length(self, shape: object) -> int:
        """The network's directions."""
        del shape
        return len(_weights()["directions"])

    def _features(self, characters: Tensor) -> Tensor:
        embedding = _weights()["embed_weight"]
        states, _ = _cells()(embedding[characters[:, -_CONTEXT:].T])
        features: Tensor = _SCALE * states[-1] @ _weights()["directions"].T
        return features


class PublicImage(_InBatches):
    """Images in colour (batch, 3, side, side), normalised as CIFAR-10 is, to features of length 1 (batch, 1280)."""

    _at_once = _IMAGES

    @property
    def version(self) -> str:  # type: ignore[override]
        """The digest of the weights, and the size of the images that they are shown."""
        return f"{_digest('public-image')} {_SIDE}"

    def length(self, shape: object) -> int:
        """The network's features."""
        del shape
        return efficientnet.NUM_FEATURES

    def _features(self, images: Tensor) -> Tensor:
        mean, std = (torch.tensor(values).view(1, 3, 1, 1) for values in NORMALISATION["cifar10"])
        pixels = 255 * (images * std + mean)
        large = nn.functional.interpolate(pixels, size=(_SIDE, _SIDE), mode="bilinear", align_corners=False)
        shown = ((large - _BYTE_MEAN) / _BYTE_STD).contiguous(memory_format=torch.channels_last)
        return nn.functional.normalize(_network()(shown))


def public_head(num_classes: int) -> nn.Linear:
    """A dense layer that starts as the text network's own."""
    weights = _weights()
    alphabet = len(weights["head_bias"])
    if num_classes != alphabet:
        raise InputError(
            f"expected text in the alphabet of {alphabet} characters that 'public-text' was learnt in, got one of "
            f"{num_classes}: use 'char-linear', or learn a network by tools/public_text.py"
        )
    head = nn.Linear(weights["head_weight"].shape[1], num_classes)
    with torch.no_grad():
        head.weight.copy_(weights["head_weight"] / _SCALE)
        head.bias.copy_(weights["head_bias"])
    return head


def _digest(name: str) -> str:
    return source_of(name).files[0].sha256


def _content(name: str) -> bytes:
    (content,) = obtain(source_of(name)).contents.values()
    return content


@functools.cache
def _weights() -> dict[str, Tensor]:
    with np.load(io.BytesIO(_content("public-text")), allow_pickle=False) as arrays:
        return {name: torch.from_numpy(arrays[name]).float() for name in arrays.files if name != "alphabet"}


@functools.cache
def _cells() -> nn.GRU:
    weights = _weights()
    units, embedding = weights["cells_weight_hh_l0"].shape[1], weights["embed_weight"].shape[1]
    cells = nn.GRU(embedding, units).requires_grad_(False)
    cells.load_state_dict({name: weights[f"cells_{name}"] for name, _ in cells.named_parameters()})
    return cells


@functools.cache
def _network() -> efficientnet.Network:
    return efficientnet.read_network(_content("public-image"))
