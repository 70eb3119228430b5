import pytest
import torch

import gdpfed
from gdpfed.errors import InputError, PrivacyError

pytestmark = pytest.mark.training


def clients(count: int, generator: torch.Generator) -> list[tuple[torch.Tensor, torch.Tensor]]:
    made = []
    for _ in range(count):
        inputs = torch.randn(8, 5, generator=generator)
        made.append((inputs, (inputs[:, 0] > 0).long()))
    return made


def test_own_model_and_data() -> None:
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(5, 2))
    before = [parameter.clone() for parameter in model.parameters()]
    test = clients(1, generator)[0]
    arguments = {
        "model": model,
        "clients": clients(200, generator),
        "budgets": gdpfed.parse_compact("100@2,100@8"),
        "settings": gdpfed.PlanSettings(method="pooled", num_rounds=15, participation=0.3),
        "local": gdpfed.LocalTraining(learning_rate=0.5, batch_size=4, local_steps=3),
        "test": test,
    }
    trained = gdpfed.train(seed=1, num_workers=2, **arguments)  # type: ignore[arg-type]
    assert len(trained.accuracies) == len(trained.records) == 15
    assert trained.accuracies[-1] >= 85
    # The model that was handed in is left as it was; the same seed gives the same model.
    assert all(torch.equal(one, other) for one, other in zip(before, model.parameters(), strict=True))
    again = gdpfed.train(seed=1, num_workers=1, **arguments)  # type: ignore[arg-type]
    for one, other in zip(trained.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_refusals() -> None:
    generator = torch.Generator().manual_seed(0)
    normed = torch.nn.Sequential(torch.nn.Linear(5, 2), torch.nn.BatchNorm1d(2))
    settings = gdpfed.PlanSettings(method="dp-fedavg", num_rounds=1, participation=0.5)
    with pytest.raises(PrivacyError, match="GroupNorm"):
        gdpfed.train(
            model=normed,
            clients=clients(50, generator),
            budgets=gdpfed.parse_compact("50@1"),
            seed=1,
            settings=settings,
        )
    with pytest.raises(InputError, match="budget for each of 40 clients"):
        gdpfed.train(
            model=torch.nn.Linear(5, 2), clients=clients(40, generator), budgets=gdpfed.parse_compact("50@1"), seed=1
        )
    empty = [*clients(49, generator), (torch.empty(0, 5), torch.empty(0, dtype=torch.long))]
    with pytest.raises(InputError, match="client 49"):
        gdpfed.train(
            model=torch.nn.Linear(5, 2), clients=empty, budgets=gdpfed.parse_compact("50@1"), seed=1, settings=settings
        )
