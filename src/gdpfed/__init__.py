"""Federated learning for clients who ask for different amounts of privacy.

    import gdpfed
    plan = gdpfed.make_plan(gdpfed.parse_compact("2000@0.5,2000@1.5,2000@3"), gdpfed.PlanSettings(num_rounds=50))

Names are imported when they are first used, so that `import gdpfed` is quick and needs no optional package.
"""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOME = {
    "Budgets": "gdpfed.privacy.budgets",
    "parse_compact": "gdpfed.privacy.budgets",
    "read_budgets": "gdpfed.privacy.budgets",
    "SampledGaussian": "gdpfed.privacy.accountant",
    "epsilon_of": "gdpfed.privacy.accountant",
    "noise_multiplier_for": "gdpfed.privacy.calibrate",
    "num_rounds_for": "gdpfed.privacy.calibrate",
    "sampling_rate_for": "gdpfed.privacy.calibrate",
    "max_participations_for": "gdpfed.privacy.adversaries",
    "server_epsilon": "gdpfed.privacy.adversaries",
    "METHODS": "gdpfed.planning.methods",
    "make_plan": "gdpfed.planning.methods",
    "Group": "gdpfed.planning.plan",
    "Plan": "gdpfed.planning.plan",
    "assign": "gdpfed.planning.people",
    "load_plan": "gdpfed.planning.plan_file",
    "plan_hash": "gdpfed.planning.plan_file",
    "save_plan": "gdpfed.planning.plan_file",
    "PlanSettings": "gdpfed.planning.settings",
    "Task": "gdpfed.tasks.task",
    "load_task": "gdpfed.tasks.task",
    "LocalTraining": "gdpfed.training.clients.cohort",
    "Trained": "gdpfed.runs.api",
    "train": "gdpfed.runs.api",
    "GdpfedError": "gdpfed.errors",
    "InputError": "gdpfed.errors",
    "PrivacyError": "gdpfed.errors",
}

__all__ = [
    "METHODS",
    "Budgets",
    "GdpfedError",
    "Group",
    "InputError",
    "LocalTraining",
    "Plan",
    "PlanSettings",
    "PrivacyError",
    "SampledGaussian",
    "Task",
    "Trained",
    "__version__",
    "assign",
    "epsilon_of",
    "load_plan",
    "load_task",
    "make_plan",
    "max_participations_for",
    "noise_multiplier_for",
    "num_rounds_for",
    "parse_compact",
    "plan_hash",
    "read_budgets",
    "sampling_rate_for",
    "save_plan",
    "server_epsilon",
    "train",
]

if TYPE_CHECKING:
    from gdpfed.errors import GdpfedError, InputError, PrivacyError
    from gdpfed.planning.methods import METHODS, make_plan
    from gdpfed.planning.people import assign
    from gdpfed.planning.plan import Group, Plan
    from gdpfed.planning.plan_file import load_plan, plan_hash, save_plan
    from gdpfed.planning.settings import PlanSettings
    from gdpfed.privacy.accountant import SampledGaussian, epsilon_of
    from gdpfed.privacy.adversaries import max_participations_for, server_epsilon
    from gdpfed.privacy.budgets import Budgets, parse_compact, read_budgets
    from gdpfed.privacy.calibrate import noise_multiplier_for, num_rounds_for, sampling_rate_for
    from gdpfed.runs.api import Trained, train
    from gdpfed.tasks.task import Task, load_task
    from gdpfed.training.clients.cohort import LocalTraining


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    raise AttributeError(f"module 'gdpfed' has no attribute {name!r}")


def __dir__() -> list[str]:
    return list(__all__)
