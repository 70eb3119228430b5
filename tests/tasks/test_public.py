"""Features by networks that were learnt from public data."""

import io
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import nn

from gdpfed.errors import InputError
from gdpfed.tasks import public
from gdpfed.tasks.catalogue import CATALOGUE, DATA_SETS, public_data_of, source_of
from gdpfed.tasks.datasets import load_dataset
from gdpfed.tasks.features import Fixed
from gdpfed.tasks.models import MODELS, build_model, refuse_running_statistics
from gdpfed.tasks.public import PublicImage, PublicText
from gdpfed.tasks.sources import obtain
from gdpfed.tasks.text import PLAYS_ALPHABET
from tests.tasks import test_efficientnet

weights = test_efficientnet.weights


@pytest.fixture
def images(weights: dict[str, torch.Tensor], monkeypatch: pytest.MonkeyPatch) -> Iterator[PublicImage]:
    """With weights of chance: the real ones have to be fetched."""
    made = test_efficientnet.network(weights)
    monkeypatch.setattr(public, "_network", lambda: made)
    return PublicImage()


def texts(number: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(2).integers(0, 78, (number, 80)))


def pictures(number: int) -> torch.Tensor:
    return torch.randn(number, 3, 32, 32, generator=torch.Generator().manual_seed(7))


def alone_and_together(features: Fixed, inputs: torch.Tensor) -> None:
    together = features(inputs)
    alone = torch.cat([features(one.unsqueeze(0)) for one in inputs])
    assert torch.equal(together, alone)
    assert together.shape == (len(inputs), features.length(inputs.shape[1:]))
    assert torch.equal(features(inputs.flip(0)), together.flip(0))
    assert features(inputs[:0]).shape == (0, together.shape[1])


def test_features_are_each_examples_own(images: PublicImage) -> None:
    alone_and_together(PublicText(), texts(9))
    alone_and_together(images, pictures(11))


def test_states_are_the_networks() -> None:
    """The file's weights in PyTorch's own cell, a character at a time."""
    content = obtain(source_of("public-text")).contents["public-text.npz"]
    with np.load(io.BytesIO(content)) as arrays:
        held = {name: torch.from_numpy(arrays[name]).float() for name in arrays.files if name != "alphabet"}
        alphabet = str(arrays["alphabet"])
    units = held["cells_weight_hh_l0"].shape[1]
    cell = nn.GRUCell(held["embed_weight"].shape[1], units)
    cell.load_state_dict({name: held[f"cells_{name}_l0"] for name, _ in cell.named_parameters()})
    characters, state = texts(3), torch.zeros(3, units)
    with torch.no_grad():
        for place in range(80 - public._CONTEXT, 80):
            state = cell(held["embed_weight"][characters[:, place]], state)
        turned = state @ held["directions"].T
        expected = turned @ held["head_weight"].T + held["head_bias"]
        model = build_model("public-text", seed=1, num_classes=78)
        torch.testing.assert_close(PublicText()(characters), turned / 10, rtol=0, atol=2e-3)
        torch.testing.assert_close(model(characters), expected, rtol=0, atol=2e-2)
    # Directions that do not overlap: features as many as they must be, and no more.
    assert held["directions"].shape == (77, units)
    torch.testing.assert_close(held["directions"] @ held["directions"].T, torch.eye(77), rtol=0, atol=1e-2)
    # Else each character would be taken for another.
    assert alphabet == PLAYS_ALPHABET


def test_image_features_have_length_one(images: PublicImage) -> None:
    for factor in (0.1, 1.0, 3.0):
        torch.testing.assert_close(images(factor * pictures(3)).norm(dim=1), torch.ones(3), rtol=0, atol=2e-3)


def test_another_alphabet_is_refused() -> None:
    with pytest.raises(InputError, match=r"alphabet of 78 .* got one of 60"):
        build_model("public-text", seed=1, num_classes=60)
    with pytest.raises(InputError, match="3 channels"):
        build_model("public-image", seed=1, channels=1)


@pytest.mark.parametrize("name", ["public-text", "public-image"])
def test_public_data_is_named(name: str) -> None:
    assert public_data_of(name)
    assert name not in DATA_SETS
    with pytest.raises(InputError, match="a data set among"):
        load_dataset(name)
    sizes = {"num_classes": 78} if name == "public-text" else {}
    model = build_model(name, seed=1, **sizes)
    refuse_running_statistics(model)
    assert [name for name, _ in model.named_parameters()] == ["head.weight", "head.bias"]
    # Whatever else has a network in the catalogue is a model, and no other model has one.
    networks = {source.name for source in CATALOGUE.values() if source.public_data}
    assert networks == {model for model in MODELS if public_data_of(model)}
    assert not public_data_of("package.module:function")
