"""One's own model on one's own clients: `gdpfed.train`.

    python examples/own_model.py

Any torch.nn.Module without running statistics (BatchNorm only with track_running_stats=False: they would escape the
clip). A client is a pair of tensors. It is a simulation: the noise follows from the seed, so that the result is
reproducible and no release.
"""

import torch
from torch import nn

import gdpfed
from gdpfed.privacy.rounding import rounded_up

torch.manual_seed(0)
RULE = torch.randn(20)


def examples(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and labels of one client."""
    inputs = torch.randn(count, 20)
    return inputs, (inputs @ RULE > 0).long()


class Network(nn.Module):
    """A small network, as one would write it without gdpfed."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(20, 16)
        self.output = nn.Linear(16, 2)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.output(torch.relu(self.hidden(inputs)))
        return logits


trained = gdpfed.train(
    model=Network(),
    clients=[examples(16) for _ in range(800)],
    budgets=gdpfed.parse_compact("200@0.8,300@2,300@5"),
    settings=gdpfed.PlanSettings(method="pooled", num_rounds=20, participation=0.1, delta=1e-4),
    local=gdpfed.LocalTraining(learning_rate=0.3, batch_size=8, local_steps=4),
    test=examples(500),
    seed=1,
)

print(f"test accuracy {trained.accuracies[-1]:.1f}% after {trained.plan.num_rounds} rounds")
for group in trained.plan.groups:
    print(f"{group.name}: promised epsilon {group.epsilon:g}, released {rounded_up(group.epsilon_release)}")
assert isinstance(trained.model, Network)
assert trained.accuracies[-1] > 70
