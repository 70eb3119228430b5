"""A method of one's own, compared with those of the library, without an edit of the library.

    python examples/own_method.py
    cd examples && gdpfed plan compare 200@1,300@3,300@8 --participation 0.1 --methods gdpfed,own_method:square_root

A method is a function from budgets and settings to a plan. Whatever it chooses, noise follows from the accountant, and
the plan is verified: a method can be worse than others, but it cannot break a budget unnoticed. A package that is
installed offers its methods by name, to every command:

    [project.entry-points."gdpfed.methods"]
    square-root = "own_method:square_root"
"""

import dataclasses

import numpy as np

import gdpfed


# From here on every part of the library knows it: make_plan, gdpfed.train, runs in folders.
@gdpfed.method("square-root")
def square_root(budgets: gdpfed.Budgets, settings: gdpfed.PlanSettings) -> gdpfed.Plan:
    """Asks a group in proportion to the square root of its budget, and weighs the groups by their noise."""
    epsilons, sizes = np.unique(budgets.epsilons, return_counts=True)
    shares = np.sqrt(epsilons)
    rates = settings.participation * shares * sizes.sum() / (shares @ sizes)
    chosen = dataclasses.replace(settings, method="gdpfed", rates=tuple(rates.tolist()), weights="inverse-variance")
    return gdpfed.make_plan(budgets, chosen)


if __name__ == "__main__":
    budgets = gdpfed.parse_compact("200@1,300@3,300@8")
    for method in ("dp-fedavg", "gdpfed", "square-root", "pooled"):
        settings = gdpfed.PlanSettings(method=method, num_rounds=30, participation=0.1, delta=1e-4)
        plan = gdpfed.make_plan(budgets, settings)
        rates = ", ".join(f"{group.sampling_rate:.3f}" for group in plan.groups)
        print(f"{method:12} signal-to-noise {plan.signal_to_noise:6.2f}, rates {rates}")
