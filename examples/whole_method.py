"""The whole method on one screen: from the budgets that people state to a trained model.

    python examples/whole_method.py

Every step is one function of the library. `gdpfed.train` does the same faster (own_model.py), `gdpfed train` keeps it
in a folder, and in a deployment (own_flower_app) data and single updates never leave their clients.
"""

import numpy as np
import torch
from torch.nn.functional import cross_entropy

import gdpfed
from gdpfed.planning.groups import group_by_distinct
from gdpfed.planning.rates import paper_rates
from gdpfed.privacy.rounding import rounded_up
from gdpfed.training import aggregate, mechanism, sampling, sparsify

SEED, NUM_ROUNDS, PARTICIPATION, DELTA = 1, 30, 0.1, 1e-4

# Budgets: 200 people allow epsilon 1, 300 allow 3, 300 allow 8. Equal budgets make a group.
budgets = gdpfed.parse_compact("200@1,300@3,300@8")
groups = group_by_distinct(budgets, DELTA)
# Rates: how often a group's clients are asked. Noise: what keeps the group's budget at that rate.
rates = paper_rates(groups, participation=PARTICIPATION)
noise = [
    gdpfed.noise_multiplier_for(epsilon=epsilon, delta=DELTA, sampling_rate=rate, num_rounds=NUM_ROUNDS)
    for epsilon, rate in zip(groups.epsilons, rates, strict=True)
]
# The plan is all of this in one value, with weights and sparsity; verify computes again what it promises.
settings = gdpfed.PlanSettings(method="gdpfed+", num_rounds=NUM_ROUNDS, participation=PARTICIPATION, delta=DELTA)
plan = gdpfed.make_plan(budgets, settings)
plan.verify()
assert noise == [group.noise_multiplier for group in plan.groups]

# Data: everybody has 16 examples of one rule. The last 60 are no clients: they test.
generator = torch.Generator().manual_seed(SEED)
inputs = torch.randn(len(budgets) + 60, 16, 20, generator=generator)
labels = (inputs @ torch.randn(20, generator=generator) > 0).long()


def trained(model: torch.Tensor, client: int) -> torch.Tensor:
    """How far a linear model moves in four steps of gradient descent on the client's own examples."""
    own = model.view(20, 2).float().requires_grad_()
    for _ in range(4):
        (gradient,) = torch.autograd.grad(cross_entropy(inputs[client] @ own, labels[client]), own)
        own = own - 0.3 * gradient
    return own.detach().double().flatten() - model


model = torch.zeros(20 * 2, dtype=torch.float64)
group_of = gdpfed.assign(plan, budgets)
participations = np.zeros_like(group_of)
for number in range(plan.num_rounds):
    sampled = sampling.sample_clients(plan, group_of, participations, seed=SEED, round_number=number)
    participations[sampled] += 1
    released = []
    for index, group in enumerate(plan.groups):
        total = torch.zeros_like(model)
        for client in sampled[group_of[sampled] == index]:
            total += mechanism.clip(trained(model, client).unsqueeze(0), clip_norm=group.clip_norm)[0][0]
        total += mechanism.noise(len(model), std=group.noise_std, seed=SEED, round_number=number, place=index)
        released.append(sparsify.keep_largest(total, num_kept=round(group.keep_fraction * len(model))))
    model += aggregate.combine(plan, released, layer_sizes=[len(model)])

accuracy = float(((inputs[-60:].double() @ model.view(20, 2)).argmax(-1) == labels[-60:]).double().mean())
print(f"accuracy {accuracy:.0%}, with epsilons", *(rounded_up(group.epsilon_release, 3) for group in plan.groups))
assert accuracy > 0.7
