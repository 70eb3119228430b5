"""Dense layers on fixed features, against autograd."""

import pytest
import torch
from torch import Tensor, nn

from gdpfed.tasks.features import KeptFeatures, Scattering
from gdpfed.tasks.models import build_model
from gdpfed.training.clients.batched import LinearModel, batched_model

CLIENTS, BATCH = 3, 4


def autograd(
    model: nn.Module, parameters: list[Tensor], inputs: Tensor, labels: Tensor, weights: Tensor
) -> list[Tensor]:
    """One client after the other, by the module itself."""
    found = []
    for client in range(CLIENTS):
        nn.utils.vector_to_parameters(torch.cat([part[client].flatten() for part in parameters]), model.parameters())
        losses = nn.functional.cross_entropy(model(inputs[client]), labels[client], reduction="none")
        found.append(torch.autograd.grad((losses * weights[client]).sum(), list(model.parameters())))
    return [torch.stack(parts) for parts in zip(*found, strict=True)]


@pytest.mark.parametrize("kept", [False, True])
def test_linear_equals_autograd(kept: bool) -> None:
    generator = torch.Generator().manual_seed(1)
    model = nn.Sequential(KeptFeatures() if kept else Scattering(), nn.Linear(Scattering.num_features(12), 5))
    shape = (Scattering.num_features(12),) if kept else (1, 12, 12)
    inputs = torch.randn(CLIENTS, BATCH, *shape, generator=generator)
    parameters = [torch.randn(CLIENTS, *part.shape, generator=generator) for part in model.parameters()]
    labels = torch.randint(0, 5, (CLIENTS, BATCH), generator=generator)
    weights = torch.rand(CLIENTS, BATCH, generator=generator)
    batched = batched_model(model)
    assert isinstance(batched, LinearModel)
    found = batched.gradients(parameters, batched.prepare(inputs), labels, weights)
    for ours, theirs in zip(found, autograd(model, parameters, inputs, labels, weights), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_text_is_linear_too() -> None:
    generator = torch.Generator().manual_seed(2)
    model = build_model("char-linear", seed=1, num_classes=7, width=3)
    assert sum(parameter.numel() for parameter in model.parameters()) == 7 * (3 * 7) + 7
    inputs = torch.randint(0, 7, (CLIENTS, BATCH, 9), generator=generator)
    parameters = [torch.randn(CLIENTS, *part.shape, generator=generator) for part in model.parameters()]
    labels = torch.randint(0, 7, (CLIENTS, BATCH), generator=generator)
    weights = torch.rand(CLIENTS, BATCH, generator=generator)
    batched = batched_model(model)
    assert isinstance(batched, LinearModel)
    found = batched.gradients(parameters, batched.prepare(inputs), labels, weights)
    for ours, theirs in zip(found, autograd(model, parameters, inputs, labels, weights), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_other_models_are_not_linear() -> None:
    assert LinearModel.supports(build_model("scattering-linear", seed=1))
    for model in (
        build_model("cnn2", seed=1),
        nn.Sequential(nn.Flatten(), nn.Linear(4, 2)),
        nn.Sequential(KeptFeatures(), nn.Linear(4, 2, bias=False)),
        nn.Sequential(KeptFeatures(), nn.Linear(4, 2), nn.ReLU()),
    ):
        assert not LinearModel.supports(model)
