"""The paper's FMNIST population at uniform rates, planned once: three budgets."""

import functools

from gdpfed.planning.methods import make_plan
from gdpfed.planning.plan import Plan
from gdpfed.planning.settings import PlanSettings
from gdpfed.privacy.budgets import parse_compact


@functools.cache
def fmnist_plan() -> Plan:
    budgets = parse_compact("2000@0.5,2000@1.5,2000@3")
    return make_plan(budgets, PlanSettings(method="gdpfed", num_rounds=50, participation=0.02, clip_norm=1.5))


@functools.cache
def small_plan(method: str = "gdpfed") -> Plan:
    settings = PlanSettings(method=method, num_rounds=8, participation=0.2, clip_norm=0.7)
    return make_plan(parse_compact("60@1,90@2,50@6"), settings)


@functools.cache
def rotation_plan() -> Plan:
    """Asked 50 times, with a coin of 0.02: epsilon 0.5 against the server."""
    settings = PlanSettings(
        method="gdpfed", num_rounds=50, participation=0.02, clip_norm=1.5, against="server", asks=50, trainings=1.0
    )
    return make_plan(parse_compact("2000@0.5,2000@1.5,2000@3"), settings)


@functools.cache
def small_rotation(method: str = "gdpfed") -> Plan:
    settings = PlanSettings(
        method=method, num_rounds=8, participation=0.2, clip_norm=0.7, against="server", asks=4, trainings=1.6
    )
    return make_plan(parse_compact("60@1,90@2,50@6"), settings)
