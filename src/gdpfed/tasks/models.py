"""The models of the paper's four tasks, at sizes that the presets state, three that were made for noise, and two
that rest on public data.

Place: what a client trains. None has running statistics: BatchNorm's would leave a client unclipped and without noise,
so it is refused in a private run (`refuse_running_statistics`).

Guarantees (tests of the same name):
  weights_follow_the_seed            alone: PyTorch's global generator is neither used nor moved.
  running_statistics_are_refused     with the replacement in the message.
"""

import itertools
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import nn

from gdpfed.config import called, imported, is_reference
from gdpfed.errors import InputError, PrivacyError, expect_word
from gdpfed.tasks.efficientnet import NUM_FEATURES
from gdpfed.tasks.features import Centred, LastCharacters, Mirrored, Scattering
from gdpfed.tasks.public import PublicImage, PublicText, public_head
from gdpfed.tasks.words import WordSoFar

__all__ = ["MODELS", "CharLSTM", "build_model", "refuse_running_statistics"]


def _cnn(
    maps: Sequence[int], dense: Sequence[int], *, kernel: int, padding: int, channels: int = 1, num_classes: int = 10
) -> nn.Module:
    """Convolutions to each number of channels, each with ReLU and a pool; then dense layers likewise."""
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise((channels, *maps)):
        layers += [nn.Conv2d(inputs, outputs, kernel, padding=padding), nn.ReLU(), nn.MaxPool2d(2)]
    layers.append(nn.Flatten())
    for inputs, outputs in itertools.pairwise((*dense, num_classes)):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def _cnn2(*, padding: int, side: int, width: int = 16, **sizes: int) -> nn.Module:
    """Two 5x5 convolutions that leave ``side`` pixels, and the output layer.

    The paper prints no sizes for its 2-layer CNN. This one was chosen by its accuracy without privacy alone.
    """
    return _cnn((width, 2 * width), (side**2 * 2 * width,), kernel=5, padding=padding, **sizes)


def scattering_linear(
    *, channels: int = 1, num_classes: int = 10, features: type[Scattering] = Scattering
) -> nn.Module:
    """A dense layer, from zero, on fixed features: 39,700 parameters on 28x28 grey images, 53,130 on 32x32 in colour.

    It was made for noise: nothing below the last layer is trained (`features.py`).
    """
    return _on_fixed(features(), features.num_features(28 if channels == 1 else 32, channels), num_classes)


def char_linear(*, num_classes: int, width: int = 2) -> nn.Module:
    """A dense layer, from zero, on the last ``width`` characters: 12,246 parameters for 2 of an alphabet of 78."""
    return _on_fixed(LastCharacters(alphabet=num_classes, count=width), width * num_classes, num_classes)


def word_linear(*, num_classes: int) -> nn.Module:
    """A dense layer, from zero, on the last two characters and on the word so far: 72,150 parameters."""
    return _on_fixed(WordSoFar(alphabet=num_classes), WordSoFar.num_features, num_classes)


def public_text(*, num_classes: int) -> nn.Module:
    """A dense layer on a frozen network's view of the text, which starts as that network's own: 6,084 parameters.

    It rests on public data: `catalogue.public_data_of` says which.
    """
    return nn.Sequential(OrderedDict(features=PublicText(), head=public_head(num_classes)))


def public_image(*, channels: int = 3, num_classes: int = 10) -> nn.Module:
    """A dense layer, from zero, on a frozen network's view of images in colour: 12,810 parameters for 10 classes.

    It rests on public data: `catalogue.public_data_of` says which.
    """
    if channels != 3:
        raise InputError(f"expected images of 3 channels for 'public-image', got {channels}: use 'scattering-linear'")
    return _on_fixed(PublicImage(), NUM_FEATURES, num_classes)


def _on_fixed(features: nn.Module, length: int, num_classes: int) -> nn.Module:
    head = nn.Linear(length, num_classes)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    return nn.Sequential(OrderedDict(features=features, head=head))


def cnn3_batch(*, channels: int = 3, num_classes: int = 10, width: int = 16) -> nn.Module:
    """Three 3x3 convolutions, each normalised by the statistics of the batch that it sees, and three dense layers.

    The sizes are those of public code by the paper's authors at ``width`` 64 (537,664 parameters); 91,792 at 16.
    """
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise((channels, width, 2 * width, 4 * width)):
        layers += [nn.Conv2d(inputs, outputs, 3, bias=False), _batch_norm(outputs), nn.ReLU(), nn.MaxPool2d(2)]
    layers.append(nn.Flatten())
    for inputs, outputs in itertools.pairwise((16 * width, 128, 256, num_classes)):
        layers += [nn.Linear(inputs, outputs, bias=False), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def _batch_norm(channels: int) -> nn.Module:
    """By the statistics of each batch, in training and in evaluation: nothing is kept beside the parameters."""
    return nn.BatchNorm2d(channels, track_running_stats=False)


def _group_norm(channels: int) -> nn.Module:
    return nn.GroupNorm(min(8, channels), channels)


Norm = Callable[[int], nn.Module]


class _Residual(nn.Module):
    """Two normalised 3x3 convolutions and a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.norm1 = norm(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = norm(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False), norm(outputs))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """(batch, inputs, height, width) -> (batch, outputs, height / stride, width / stride)."""
        hidden = torch.relu(self.norm1(self.conv1(images)))
        return torch.relu(self.norm2(self.conv2(hidden)) + self.shortcut(images))


def resnet18(*, channels: int = 3, num_classes: int = 10, width: int = 64, norm: Norm = _group_norm) -> nn.Module:
    """ResNet-18 with a 3x3 stem, normalised by groups of channels; ``width`` 64 is usual (11,173,962 parameters), 16 a
    sixteenth of it."""
    layers: list[nn.Module] = [nn.Conv2d(channels, width, 3, padding=1, bias=False), norm(width), nn.ReLU()]
    inputs = width
    for stage in range(4):
        outputs = width * 2**stage
        layers.append(_Residual(inputs, outputs, stride=1 if stage == 0 else 2, norm=norm))
        layers.append(_Residual(outputs, outputs, stride=1, norm=norm))
        inputs = outputs
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, num_classes)]
    return nn.Sequential(*layers)


class CharLSTM(nn.Module):
    """Embedding, LSTM layers, a dense layer on the last state.

    PyTorch's own LSTM, client by client: cells written out and batched over clients took four times as long.
    """

    def __init__(self, *, num_classes: int, embedding: int = 8, hidden: int = 256, layers: int = 2) -> None:
        super().__init__()
        self.embed = nn.Embedding(num_classes, embedding)
        self.cells = nn.LSTM(embedding, hidden, num_layers=layers, batch_first=True)
        self.output = nn.Linear(hidden, num_classes)

    def forward(self, characters: torch.Tensor) -> torch.Tensor:
        """(batch, length) characters -> (batch, classes) logits of the next one."""
        states, _ = self.cells(self.embed(characters))
        logits: torch.Tensor = self.output(states[:, -1])
        return logits


MODELS: dict[str, Callable[..., nn.Module]] = {
    # 21,840 parameters on 28x28 grey images.
    "small-cnn": partial(_cnn, (10, 20), (320, 50), kernel=5, padding=0),
    # 18,378, and 28,938 where the convolutions are padded.
    "cnn2": partial(_cnn2, padding=0, side=4),
    "cnn2-padded": partial(_cnn2, padding=2, side=7),
    # 1,663,370. The sizes are those of public code by the paper's authors; whether the paper used them it does not say.
    "large-cnn": partial(_cnn, (32, 64), (3136, 512), kernel=5, padding=2),
    # 89,834 on 32x32 images.
    "cnn3": partial(_cnn, (16, 32, 64), (1024, 64), kernel=3, padding=1, channels=3),
    # 91,792, normalised by the statistics of each batch.
    "cnn3-batch": cnn3_batch,
    "scattering-linear": scattering_linear,
    # The same where more is known of the pictures: things that may look either way, things in the middle of others.
    "mirrored-linear": partial(scattering_linear, features=Mirrored),
    "centred-linear": partial(scattering_linear, features=Centred),
    "resnet18": resnet18,
    "resnet18-batch": partial(resnet18, norm=_batch_norm),
    "char-lstm": CharLSTM,
    "char-linear": char_linear,
    "word-linear": word_linear,
    # Never a default: what they reach depends on what was public.
    "public-text": public_text,
    "public-image": public_image,
}


def build_model(name: str, *, seed: int, **sizes: int) -> nn.Module:
    """A model with weights that depend on the seed alone; PyTorch's global generator is left as it was.

    Of ``package.module:function`` it is what the function returns, given those sizes that it has parameters for.
    """
    if is_reference(name):
        make = partial(called, imported(name, what="model"), what=f"the model {name!r}", offered=sizes)
    else:
        expect_word("a model among", name, MODELS)
        make = partial(MODELS[name], **sizes)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        made = make()
    if not isinstance(made, nn.Module):
        raise InputError(f"expected a torch.nn.Module of the model {name!r}, got {type(made).__name__}")
    return made


def refuse_running_statistics(model: nn.Module) -> None:
    """Raises PrivacyError if the model has buffers: what is written there would leave beside the clipped update."""
    for name, module in model.named_modules():
        if isinstance(module, nn.modules.batchnorm._NormBase) and module.track_running_stats:
            raise PrivacyError(
                f"{type(module).__name__} at {name or 'the top'!r} keeps running statistics of a client's data, which "
                f"no clip bounds: replace it by nn.GroupNorm(num_groups, num_channels), or give it "
                f"track_running_stats=False"
            )
    buffers = [name for name, _ in model.named_buffers()]
    if buffers:
        raise PrivacyError(
            f"expected a model without buffers, got {buffers[0]!r}: only trained parameters are clipped and noised; "
            f"keep a constant as a plain attribute of the module"
        )
