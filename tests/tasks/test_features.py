"""Fixed features of images."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from gdpfed.tasks import features
from gdpfed.tasks.datasets import Dataset
from gdpfed.tasks.features import Centred, LastCharacters, Mirrored, Scattering, computed_once, fixed_once
from gdpfed.tasks.models import build_model, refuse_running_statistics


def images(number: int, channels: int = 1, side: int = 28) -> torch.Tensor:
    """Bright bars at random places."""
    generator = np.random.default_rng(3)
    made = generator.normal(0, 0.05, (number, channels, side, side))
    for image in made:
        row, column = generator.integers(0, side - 8, 2)
        image[:, row : row + 3, column : column + 8] += 1
    return torch.from_numpy(made.astype(np.float32))


def test_filters_have_no_mean() -> None:
    scattered = features._scattered(torch.full((1, 28, 28), 3.0))
    assert scattered.shape == (1, 81, 7, 7)
    torch.testing.assert_close(scattered[:, :1], torch.full((1, 1, 7, 7), 3.0))
    assert float(scattered[:, 1:].abs().max()) < 1e-5
    # And they see something: an edge answers to its own angle most.
    upright = torch.zeros(1, 28, 28)
    upright[..., ::4] = upright[..., 1::4] = 1
    first = features._scattered(upright)[0, 1:17].mean((1, 2))
    assert int(first.argmax()) in (0, 8)


def test_features_are_each_images_own() -> None:
    together = images(19)
    alone = torch.cat([Scattering()(image.unsqueeze(0)) for image in together])
    assert torch.equal(Scattering()(together), alone)
    broken = together.clone()
    broken[4] = torch.nan
    others = [place for place in range(19) if place != 4]
    assert torch.equal(Scattering()(broken)[others], alone[others])


def test_contrast_changes_little() -> None:
    before, after = Scattering()(10 * images(6)), Scattering()(5 * images(6) + 2)
    assert float(before.std()) == pytest.approx(1, abs=0.2)
    later = (slice(None), slice(3 * 49, None))
    assert float((before - after)[later].abs().mean()) < 0.05


def test_colours_are_maps_of_their_own() -> None:
    grey = images(4, 1, 32)
    shown = Scattering()(grey.expand(-1, 3, -1, -1))
    assert shown.shape == (4, Scattering.num_features(32, 3)) == (4, 83 * 64)
    torch.testing.assert_close(shown[:, : 81 * 64], Scattering()(grey), rtol=0, atol=2e-3)
    assert float(shown[:, 81 * 64 :].abs().max()) < 1e-2
    coloured = images(4, 3, 32)
    turned = coloured.flip(1)
    assert float((Scattering()(coloured) - Scattering()(turned))[:, : 81 * 64].abs().max()) < 2e-2
    assert float((Scattering()(coloured) - Scattering()(turned))[:, 81 * 64 :].abs().mean()) > 0.5


@pytest.mark.parametrize(("channels", "side"), [(1, 28), (3, 32)])
def test_mirror_images_are_the_same(channels: int, side: int) -> None:
    shown = images(6, channels, side)
    both = Mirrored()(shown)
    assert both.shape == (6, Mirrored.num_features(side, channels))
    torch.testing.assert_close(both, Mirrored()(shown.flip(-1)), rtol=0, atol=2e-3)
    torch.testing.assert_close(both, (Scattering()(shown) + Scattering()(shown.flip(-1))) / 2, rtol=0, atol=4e-3)
    # Other pictures are told apart, and upside down is another picture.
    assert float((both[0] - both[1]).abs().mean()) > 0.1
    assert float((both - Mirrored()(shown.flip(-2))).abs().mean()) > 0.1


@pytest.mark.parametrize(("channels", "side"), [(1, 28), (3, 32)])
def test_edges_count_less(channels: int, side: int) -> None:
    shown, across = images(6, channels, side), side // 4
    before, after = (made(shown).unflatten(1, (-1, across, across)) for made in (Scattering(), Centred()))
    assert torch.equal(before[..., 2:-2], after[..., 2:-2])
    for place, share in ((0, 0.3), (1, 0.7), (-2, 0.7), (-1, 0.3)):
        torch.testing.assert_close(after[..., place], share * before[..., place], rtol=2e-3, atol=2e-3)


def test_filters_follow_the_images() -> None:
    """PyTorch's meta device computes shapes only, and refuses to mix with tensors of another: a GPU for the poor."""
    made = Scattering()(images(3, 3, 32).to("meta"))
    assert made.device.type == "meta"
    assert made.shape == (3, Scattering.num_features(32, 3))


def test_last_characters() -> None:
    text = torch.tensor([[0, 1, 2], [2, 2, 0]])
    expected = [[0, 1, 0, 0, 0, 1], [0, 0, 1, 1, 0, 0]]
    assert LastCharacters(alphabet=3, count=2)(text).tolist() == expected


@pytest.mark.parametrize("kept_on_disk", [False, True])
def test_computed_once_is_the_same(kept_on_disk: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GDPFED_CACHE", str(tmp_path) if kept_on_disk else "off")
    dataset = Dataset(
        name="bars",
        train_inputs=images(12, 3, 32).numpy(),
        train_labels=np.arange(12) % 10,
        test_inputs=images(5, 3, 32).numpy(),
        test_labels=np.arange(5),
        num_classes=10,
    )
    model = build_model("scattering-linear", seed=1, channels=3, num_classes=10)
    refuse_running_statistics(model)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, generator=torch.Generator().manual_seed(1))
    for _ in range(2):
        featured, rest = computed_once(dataset, model)
        assert [name for name, _ in rest.named_parameters()] == [name for name, _ in model.named_parameters()]
        with torch.no_grad():
            whole, part = model(torch.from_numpy(dataset.test_inputs)), rest(torch.from_numpy(featured.test_inputs))
        assert torch.equal(whole, part)
    kept = list(tmp_path.rglob("*.npy"))
    assert len(kept) == 2 * kept_on_disk
    for path in kept:
        # Of another version: made again.
        np.save(path, np.zeros((12, 7), dtype=np.float16))
    assert computed_once(dataset, model)[0].test_inputs.shape == featured.test_inputs.shape
    other = build_model("cnn3", seed=1, channels=3)
    assert computed_once(dataset, other) == (dataset, other)


def test_holding_out() -> None:
    dataset = Dataset(
        name="bars",
        train_inputs=images(12).numpy(),
        train_labels=np.arange(12) % 10,
        test_inputs=images(5).numpy(),
        test_labels=np.arange(5),
        num_classes=10,
    )
    held = dataset.holding_out(4)
    assert np.array_equal(held.test_inputs, dataset.train_inputs[8:])
    assert np.array_equal(held.train_labels, dataset.train_labels[:8])
    assert dataset.holding_out(0) is dataset


def test_a_frozen_part_is_computed_once() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Dropout(0.5)).eval(), nn.Linear(5, 3))
    inputs = torch.randn(300, 6)
    # Nothing is frozen, or a frozen part draws: all stays as it is.
    assert fixed_once(model, inputs) == (model, (inputs,))
    model[0].requires_grad_(False)
    assert fixed_once(model.train(), inputs) == (model, (inputs,))
    model[0].eval()
    rest, (features, none) = fixed_once(model, inputs, inputs[:0])
    torch.testing.assert_close(rest(features), model(inputs))
    assert len(none) == 0
    assert rest[1] is model[1]  # type: ignore[index]
