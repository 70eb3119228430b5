"""From budgets to a plan: groups, rates, noise, weights, sparsity. Pure functions and frozen values."""
