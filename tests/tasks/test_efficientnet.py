"""EfficientNet-Lite0 with weights of chance: what it computes does not depend on what it knows."""

import io

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from gdpfed.errors import InputError
from gdpfed.tasks import efficientnet
from gdpfed.tasks.efficientnet import NUM_FEATURES, network, read_network

# Widths and filter sizes as the paper of EfficientNet prints them, in the order of the blocks.
WIDTHS = (32, 16, 24, 24, 40, 40, 80, 80, 80, 112, 112, 112, 192, 192, 192, 192, 320)
KERNELS = (3, 3, 3, 5, 5, 3, 3, 3, 5, 5, 5, 5, 5, 5, 5, 3)


def convolution(name: str, norm: str, shape: tuple[int, ...], draw: torch.Generator) -> dict[str, Tensor]:
    scale = (shape[1] * shape[2] * shape[3]) ** -0.5
    weights = {f"{name}.weight": torch.randn(shape, generator=draw) * scale}
    for part in ("weight", "bias", "running_mean", "running_var"):
        weights[f"{norm}.{part}"] = torch.rand(shape[0], generator=draw) + (0.5 if part != "bias" else 0)
    return weights


@pytest.fixture(scope="module")
def weights() -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(4)
    made = convolution("_conv_stem", "_bn0", (32, 3, 3, 3), draw)
    for number, kernel in enumerate(KERNELS):
        at, inputs, outputs = f"_blocks.{number}._", WIDTHS[number], WIDTHS[number + 1]
        wide = inputs * (6 if number else 1)
        if number:
            made |= convolution(f"{at}expand_conv", f"{at}bn0", (wide, inputs, 1, 1), draw)
        made |= convolution(f"{at}depthwise_conv", f"{at}bn1", (wide, 1, kernel, kernel), draw)
        made |= convolution(f"{at}project_conv", f"{at}bn2", (outputs, wide, 1, 1), draw)
    return made | convolution("_conv_head", "_bn1", (NUM_FEATURES, 320, 1, 1), draw)


def one_after_the_other(weights: dict[str, Tensor], images: Tensor) -> Tensor:
    """The network as it is trained: a convolution, then its normalisation, in double precision."""

    def layer(maps: Tensor, name: str, norm: str, *, stride: int = 1, rectified: bool = True) -> Tensor:
        kernel = weights[f"{name}.weight"].double()
        missing = max((-(-maps.shape[-1] // stride) - 1) * stride + kernel.shape[-1] - maps.shape[-1], 0)
        maps = functional.pad(maps, (missing // 2, missing - missing // 2) * 2)
        maps = functional.conv2d(maps, kernel, stride=stride, groups=maps.shape[1] // kernel.shape[1])
        mean, variance, scale, shift = (
            weights[f"{norm}.{part}"].double() for part in ("running_mean", "running_var", "weight", "bias")
        )
        maps = functional.batch_norm(maps, mean, variance, scale, shift, eps=1e-3)
        return functional.relu6(maps) if rectified else maps

    maps = layer(images.double(), "_conv_stem", "_bn0", stride=2)
    for number in range(16):
        at, made = f"_blocks.{number}._", maps
        if number:
            made = layer(made, f"{at}expand_conv", f"{at}bn0")
        made = layer(made, f"{at}depthwise_conv", f"{at}bn1", stride=2 if number in (1, 3, 5, 11) else 1)
        made = layer(made, f"{at}project_conv", f"{at}bn2", rectified=False)
        # Within a stage: the first of each has another width or size than its input.
        maps = made + maps if number in (2, 4, 6, 7, 9, 10, 12, 13, 14) else made
    return layer(maps, "_conv_head", "_bn1").mean((2, 3))


def test_folding_changes_nothing(weights: dict[str, Tensor]) -> None:
    images = torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(1)) * 2 - 1
    with torch.no_grad():
        made, expected = network(weights)(images), one_after_the_other(weights, images)
    assert made.shape == (2, NUM_FEATURES)
    assert float(expected.std()) > 0.1
    torch.testing.assert_close(made.double(), expected, rtol=1e-3, atol=1e-3)


def test_borders_are_tensorflows() -> None:
    """A filter that takes its first pixel: of an even size with stride 2, nothing is added before it."""
    first = torch.zeros(1, 1, 3, 3)
    first[0, 0, 0, 0] = 1
    filters = efficientnet._Filters(weight=first, bias=torch.zeros(1), stride=2, is_rectified=False)
    image = torch.arange(16.0).view(1, 1, 4, 4)
    assert filters(image).flatten().tolist() == [0, 2, 8, 10]
    # Of stride 1 there is a border on both sides.
    plain = efficientnet._Filters(weight=first, bias=torch.zeros(1), stride=1, is_rectified=False)
    assert plain(image)[0, 0, 1].tolist() == [0, 0, 1, 2]


def test_other_weights_are_refused(weights: dict[str, Tensor]) -> None:
    def saved(content: object) -> bytes:
        file = io.BytesIO()
        torch.save(content, file)
        return file.getvalue()

    read_network(saved(weights))
    incomplete = {name: value for name, value in weights.items() if not name.startswith("_conv_head")}
    for content in (saved(incomplete), saved([1, 2]), b"no weights", b""):
        with pytest.raises(InputError, match="expected"):
            read_network(content)
