"""How long a plan takes, against dp-accounting's own calibration, in one run.

    python benchmarks/planning.py [--repeats 3]

The work: the three noise multipliers of the FMNIST preset (gdpfed+, PLD). Theirs is `calibrate_dp_mechanism` with
dp-accounting's PLD accountant, called for each group: at its defaults, and at our grid and tolerance. Ours is the whole
plan, epsilons included, without any cache. Runs are interleaved; only ratios mean anything on a shared machine.
"""

import argparse
import functools
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import TypeVar

import dp_accounting
from dp_accounting.pld import PLDAccountant

from gdpfed.planning.methods import make_plan
from gdpfed.planning.plan import Plan
from gdpfed.privacy import cache
from gdpfed.privacy.accountant import grid_interval
from gdpfed.privacy.pld import composed_distribution
from gdpfed.tasks.task import load_task

T = TypeVar("T")

TASK = load_task("fmnist")


def ours() -> Plan:
    """A whole plan, nothing remembered."""
    composed_distribution.cache_clear()
    with cache.without_cache():
        return make_plan(TASK.budgets, TASK.settings)


def theirs(plan: Plan, *, same_accuracy: bool) -> list[float]:
    """The same noise multipliers by dp-accounting's own search."""
    found = []
    for group in plan.groups:
        interval = grid_interval(group.epsilon, plan.num_rounds) if same_accuracy else 1e-4

        def event(noise: float, rate: float = group.sampling_rate) -> dp_accounting.DpEvent:
            sampled = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(noise))
            return dp_accounting.SelfComposedDpEvent(sampled, plan.num_rounds)

        def accountant(interval: float = interval) -> PLDAccountant:
            return PLDAccountant(value_discretization_interval=interval)

        found.append(dp_accounting.calibrate_dp_mechanism(accountant, event, group.epsilon, group.delta, tol=1e-6))
    return found


def timed(function: Callable[[], T]) -> tuple[T, float]:
    """The result and the seconds."""
    started = time.perf_counter()
    result = function()
    return result, time.perf_counter() - started


def main() -> None:
    """Runs everything and prints a table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=3)
    repeats = parser.parse_args().repeats
    plan = ours()
    seconds: dict[str, list[float]] = {"ours": [], "same accuracy": [], "defaults": []}
    for _ in range(repeats):
        plan, spent = timed(ours)
        seconds["ours"].append(spent)
        equal, spent = timed(functools.partial(theirs, plan, same_accuracy=True))
        seconds["same accuracy"].append(spent)
        default, spent = timed(functools.partial(theirs, plan, same_accuracy=False))
        seconds["defaults"].append(spent)

    with tempfile.TemporaryDirectory() as folder:
        os.environ["GDPFED_CACHE"] = folder
        cache.forget_memory()
        make_plan(TASK.budgets, TASK.settings)
        remembered, memory = timed(lambda: make_plan(TASK.budgets, TASK.settings))
        cache.forget_memory()
        from_disk, disk = timed(lambda: make_plan(TASK.budgets, TASK.settings))
    same = remembered == from_disk == plan

    median = {name: statistics.median(values) for name, values in seconds.items()}
    noise = [group.noise_multiplier for group in plan.groups]
    print(f"FMNIST preset, {plan.method}, PLD, median of {repeats} interleaved runs")
    print(f"{'':58}{'seconds':>9}{'ratio':>8}{'largest noise difference':>26}")
    for name, label, found in (
        ("defaults", "dp-accounting, its defaults (grid 1e-4, tol 1e-6)", default),
        ("same accuracy", "dp-accounting, at our grid (tol 1e-6)", equal),
        ("ours", "gdpfed, the whole plan, no cache", noise),
    ):
        apart = max(abs(one / other - 1) for one, other in zip(noise, found, strict=True))
        print(f"{label:58}{median[name]:9.3f}{median[name] / median['ours']:8.1f}{apart:26.1e}")
    print(f"{'gdpfed, again, from memory':58}{memory:9.4f}")
    print(f"{'gdpfed, again, from disk':58}{disk:9.4f}")
    print(f"plans with and without the cache are {'identical' if same else 'DIFFERENT'}")


if __name__ == "__main__":
    main()
