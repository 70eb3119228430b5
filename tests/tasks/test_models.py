"""The models themselves."""

import pytest
import torch
from torch import Tensor, nn

from gdpfed.errors import InputError, PrivacyError
from gdpfed.tasks.models import MODELS, CharLSTM, build_model, num_params, refuse_running_statistics

SIZES: dict[str, dict[str, int]] = {
    "char-lstm": {"num_classes": 90},
    "char-linear": {"num_classes": 78},
    "scattering-linear": {"channels": 3},
}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("small-cnn", 21_840),
        ("cnn3", 89_834),
        ("resnet18", 11_173_962),
        ("char-lstm", 822_570),
        ("char-linear", 12_246),
        ("scattering-linear", 53_130),
    ],
)
def test_sizes(name: str, expected: int) -> None:
    assert num_params(build_model(name, seed=0, **SIZES.get(name, {}))) == expected


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


def test_char_lstm_is_nn_lstm() -> None:
    torch.manual_seed(0)
    model = CharLSTM(num_classes=11, embedding=3, hidden=5).double()
    oracle = nn.LSTM(3, 5, num_layers=2, batch_first=True).double()
    for place in (0, 1):
        into, state = getattr(model, f"input{place}"), getattr(model, f"state{place}")
        for name, value in (
            ("weight_ih", into.weight), ("weight_hh", state.weight), ("bias_ih", into.bias), ("bias_hh", state.bias),
        ):  # fmt: skip
            getattr(oracle, f"{name}_l{place}").data.copy_(value.data)
    characters = torch.randint(0, 11, (6, 13))
    weights = torch.randn(6, 11).double()

    def of_oracle() -> Tensor:
        logits: Tensor = model.output(oracle(model.embed(characters))[0][:, -1])
        return logits

    torch.testing.assert_close(model(characters), of_oracle(), rtol=1e-12, atol=1e-12)
    mine = torch.autograd.grad((model(characters) * weights).sum(), [model.state0.weight, model.embed.weight])
    theirs = torch.autograd.grad((of_oracle() * weights).sum(), [oracle.weight_hh_l0, model.embed.weight])
    for one, two in zip(mine, theirs, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-10, atol=1e-12)
