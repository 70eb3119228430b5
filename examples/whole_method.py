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
from gdpfed.training import aggregate, mechanism, sampling, sparsify

SEED, NUM_ROUNDS, PARTICIPATION, DELTA = 1, 30, 0.1, 1e-4
torch.manual_seed(SEED)

# Budgets: 200 people allow epsilon 1, 300 allow 3, 300 allow 8. Equal budgets are a group.
budgets = gdpfed.parse_compact("200@1,300@3,300@8")
groups = group_by_distinct(budgets, DELTA)
# How often a group is asked, so that there is most signal for its noise; and the noise that keeps its budget then.
rates = paper_rates(groups, participation=PARTICIPATION)
noise = [
    gdpfed.noise_multiplier_for(epsilon=epsilon, delta=DELTA, sampling_rate=rate, num_rounds=NUM_ROUNDS)
    for epsilon, rate in zip(groups.epsilons, rates, strict=True)
]
# The plan is all of this in one value, which computes again what it promises before anybody trains.
settings = gdpfed.PlanSettings(method="gdpfed+", num_rounds=NUM_ROUNDS, participation=PARTICIPATION, delta=DELTA)
plan = gdpfed.make_plan(budgets, settings)
plan.verify()
assert noise == [group.noise_multiplier for group in plan.groups]

# Everybody has 16 examples of one rule, and a linear model to find it: 21 features, 2 classes.
rule = torch.randn(21)
inputs = torch.randn(len(budgets) + 60, 16, 21)
labels = (inputs @ rule > 0).long()


def trained(model: torch.Tensor, client: int) -> torch.Tensor:
    """How far the model moves in four steps of gradient descent on a client's own examples."""
    own = model.view(21, 2).float().requires_grad_()
    for _ in range(4):
        (gradient,) = torch.autograd.grad(cross_entropy(inputs[client] @ own, labels[client]), own)
        own = own - 0.3 * gradient
    return own.detach().double().flatten() - model


model = torch.zeros(42, dtype=torch.float64)
group_of = gdpfed.assign(plan, budgets)
participations = np.zeros_like(group_of)
for number in range(plan.num_rounds):
    sampled = sampling.sample_clients(plan, group_of, participations, seed=SEED, round_number=number)
    participations[sampled] += 1
    released = []
    for index, group in enumerate(plan.groups):
        total = torch.zeros_like(model)
        for client in sampled[group_of[sampled] == index]:
            total += mechanism.clip(trained(model, client).unsqueeze(0), clip_norm=group.clip_norm)[0]
        total += mechanism.noise(len(model), std=group.noise_std, seed=SEED, round_number=number, place=index)
        released.append(sparsify.keep_largest(total, num_kept=round(group.keep_fraction * len(model))))
    model += aggregate.combine(plan, released, layer_sizes=[len(model)])

accuracy = float(((inputs[-60:].double() @ model.view(21, 2)).argmax(-1) == labels[-60:]).double().mean())
print(f"accuracy {accuracy:.0%} after {NUM_ROUNDS} rounds")
for group in plan.groups:
    print(f"{group.name}: promised epsilon {group.epsilon:g}, released {group.epsilon_release:.4f}")
assert accuracy > 0.7
