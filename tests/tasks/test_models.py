"""The models themselves."""

import pytest
import torch
from torch import nn

from gdpfed.errors import InputError, PrivacyError
from gdpfed.tasks.models import MODELS, build_model, refuse_running_statistics

SIZES: dict[str, dict[str, int]] = {
    "char-lstm": {"num_classes": 90},
    "char-linear": {"num_classes": 78},
    "scattering-linear": {"channels": 3},
    "mirrored-linear": {"channels": 3},
    "centred-linear": {"channels": 3},
    "word-linear": {"num_classes": 78},
    "public-text": {"num_classes": 78},
}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("small-cnn", 21_840),
        ("cnn2", 18_378),
        ("cnn2-padded", 28_938),
        ("large-cnn", 1_663_370),
        ("cnn3", 89_834),
        ("cnn3-batch", 91_792),
        ("resnet18", 11_173_962),
        ("resnet18-batch", 11_173_962),
        ("char-lstm", 822_570),
        ("char-linear", 12_246),
        ("scattering-linear", 53_130),
        ("mirrored-linear", 53_130),
        ("centred-linear", 53_130),
        ("word-linear", 72_150),
        ("public-text", 6_084),
        ("public-image", 12_810),
    ],
)
def test_sizes(name: str, expected: int) -> None:
    model = build_model(name, seed=0, **SIZES.get(name, {}))
    assert sum(parameter.numel() for parameter in model.parameters()) == expected


@pytest.mark.parametrize("name", ["small-cnn", "cnn3", "char-lstm"])
def test_weights_follow_the_seed(name: str) -> None:
    before = torch.random.get_rng_state()
    models = [build_model(name, seed=seed, **SIZES.get(name, {})) for seed in (1, 1, 2)]
    assert torch.equal(torch.random.get_rng_state(), before)
    one, again, other = (nn.utils.parameters_to_vector(model.parameters()) for model in models)
    assert torch.equal(one, again)
    assert not torch.equal(one, other)


def test_unknown_models_are_refused() -> None:
    with pytest.raises(InputError, match=r"small-cnn.*did you mean"):
        build_model("smal-cnn", seed=0)


@pytest.mark.parametrize("name", MODELS)
def test_ours_have_no_running_statistics(name: str) -> None:
    sizes = {"width": 4} if name == "resnet18" else SIZES.get(name, {})
    refuse_running_statistics(build_model(name, seed=0, **sizes))


class WithMask(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.ones(3))


@pytest.mark.parametrize(
    "layer", [nn.BatchNorm1d(4), nn.BatchNorm2d(4), nn.SyncBatchNorm(4), nn.InstanceNorm2d(4, track_running_stats=True)]
)
def test_running_statistics_are_refused(layer: nn.Module) -> None:
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Sequential(nn.ReLU(), layer))
    with pytest.raises(PrivacyError, match=rf"{type(layer).__name__} at '1\.1' .* replace it by nn\.GroupNorm\("):
        refuse_running_statistics(model)
    with pytest.raises(PrivacyError, match="plain attribute"):
        refuse_running_statistics(WithMask())
    for fine in (nn.GroupNorm(2, 4), nn.LayerNorm(4), nn.BatchNorm2d(4, track_running_stats=False)):
        refuse_running_statistics(nn.Sequential(fine))
