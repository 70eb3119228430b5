"""Federated learning for clients who ask for different amounts of privacy.

    import gdpfed
    plan = gdpfed.make_plan(gdpfed.parse_compact("2000@0.5,2000@1.5,2000@3"), gdpfed.PlanSettings(num_rounds=50))

Names are imported when they are first used, so that `import gdpfed` is quick and needs no optional package. Called by
these names, a function refuses arguments of a wrong kind by an `InputError`.
The site (`make site`) describes each of them.
"""

import importlib
from types import FunctionType
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

if TYPE_CHECKING:
    from gdpfed.audit.auditor import AuditReport, audit_plan
    from gdpfed.errors import GdpfedError, InputError, PrivacyError
    from gdpfed.ledger.book import Ledger
    from gdpfed.ledger.verify import verify_ledger
    from gdpfed.planning.methods import METHODS, make_plan, plan_frontier
    from gdpfed.planning.own_methods import method
    from gdpfed.planning.people import assign
    from gdpfed.planning.plan import Group, Plan
    from gdpfed.planning.plan_file import load_plan, plan_hash, save_plan
    from gdpfed.planning.settings import PlanSettings
    from gdpfed.privacy.account import account
    from gdpfed.privacy.accountant import SampledGaussian, epsilon_of
    from gdpfed.privacy.adversaries import max_participations_for, server_epsilon
    from gdpfed.privacy.budgets import Budgets, parse_compact, read_budgets
    from gdpfed.privacy.calibrate import noise_multiplier_for, num_rounds_for, sampling_rate_for
    from gdpfed.report.load import load_report
    from gdpfed.report.page import report_html
    from gdpfed.runs.api import Trained, train
    from gdpfed.runs.folder import RunFolder, open_run
    from gdpfed.runs.simulate import simulate
    from gdpfed.runs.start import start_run
    from gdpfed.tasks.task import Task, load_task
    from gdpfed.tasks.training_settings import TrainingSettings
    from gdpfed.training.clients.blocks import LocalTraining

_NAMES_OF = {
    "gdpfed.audit.auditor": ("AuditReport", "audit_plan"),
    "gdpfed.errors": ("GdpfedError", "InputError", "PrivacyError"),
    "gdpfed.ledger.book": ("Ledger",),
    "gdpfed.ledger.verify": ("verify_ledger",),
    "gdpfed.planning.methods": ("METHODS", "make_plan", "plan_frontier"),
    "gdpfed.planning.own_methods": ("method",),
    "gdpfed.planning.people": ("assign",),
    "gdpfed.planning.plan": ("Group", "Plan"),
    "gdpfed.planning.plan_file": ("load_plan", "plan_hash", "save_plan"),
    "gdpfed.planning.settings": ("PlanSettings",),
    "gdpfed.privacy.account": ("account",),
    "gdpfed.privacy.accountant": ("SampledGaussian", "epsilon_of"),
    "gdpfed.privacy.adversaries": ("max_participations_for", "server_epsilon"),
    "gdpfed.privacy.budgets": ("Budgets", "parse_compact", "read_budgets"),
    "gdpfed.privacy.calibrate": ("noise_multiplier_for", "num_rounds_for", "sampling_rate_for"),
    "gdpfed.report.load": ("load_report",),
    "gdpfed.report.page": ("report_html",),
    "gdpfed.runs.api": ("Trained", "train"),
    "gdpfed.runs.folder": ("RunFolder", "open_run"),
    "gdpfed.runs.simulate": ("simulate",),
    "gdpfed.runs.start": ("start_run",),
    "gdpfed.tasks.training_settings": ("TrainingSettings",),
    "gdpfed.tasks.task": ("Task", "load_task"),
    "gdpfed.training.clients.blocks": ("LocalTraining",),
}
_HOMES = {name: module for module, names in _NAMES_OF.items() for name in names}

__all__ = [
    "METHODS", "AuditReport", "Budgets", "GdpfedError", "Group", "InputError", "Ledger", "LocalTraining", "Plan",
    "PlanSettings", "PrivacyError", "RunFolder", "SampledGaussian", "Task", "Trained", "TrainingSettings",
    "__version__", "account", "assign", "audit_plan", "epsilon_of", "load_plan", "load_report", "load_task",
    "make_plan", "max_participations_for", "method", "noise_multiplier_for", "num_rounds_for", "open_run",
    "parse_compact", "plan_frontier", "plan_hash", "read_budgets", "report_html", "sampling_rate_for", "save_plan",
    "server_epsilon",
    "simulate", "start_run", "train", "verify_ledger",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        found = getattr(importlib.import_module(_HOMES[name]), name)
        if isinstance(found, FunctionType):
            from gdpfed.config import checked

            found = globals()[name] = checked(found)
            # So that it can be pickled.
            found.__module__, found.__qualname__ = __name__, name
        return found
    raise AttributeError(f"module 'gdpfed' has no attribute {name!r}")


def __dir__() -> list[str]:
    return list(__all__)
