"""Methods of one's own: a function from budgets and settings to a plan, by a name.

Place: beside `methods.py`, which looks here for names that it does not know. Three ways to a name:

    @gdpfed.method("square-root")           in one's own program; known from then on
    [project.entry-points."gdpfed.methods"] in an installed package: square-root = "package.module:function"
    --method package.module:function        on the command line, or in a file: imported when a plan is made

Whatever a method chooses, its plan is verified: it can be worse than others, but it cannot break a budget unnoticed.
Nor can it leave the server out of a promise that was asked for.

Guarantees (tests of the same name):
  an_own_method_is_verified        a plan that overspends, or is for other clients, is refused.
  an_own_method_keeps_its_adversary   against the server a plan that is no rotation is refused.
  a_name_is_taken_once             no own method stands in the place of another, or of the library's.
"""

import dataclasses
from collections.abc import Callable
from importlib import metadata
from typing import TypeVar

from gdpfed.config import called, imported, is_reference
from gdpfed.errors import GdpfedError, InputError, PrivacyError
from gdpfed.planning.people import assign
from gdpfed.planning.plan import Plan
from gdpfed.planning.settings import PlanSettings
from gdpfed.privacy.budgets import Budgets

__all__ = ["ENTRY_POINTS", "OwnMethod", "method", "own_method", "own_names", "planned_by"]

OwnMethod = Callable[[Budgets, PlanSettings], Plan]
_Function = TypeVar("_Function", bound=OwnMethod)

ENTRY_POINTS = "gdpfed.methods"
_REGISTERED: dict[str, OwnMethod] = {}


def method(name: str) -> Callable[[_Function], _Function]:
    """Makes a function (budgets, settings) -> plan known as the method ``name``: to `make_plan`, and all that plans."""
    from gdpfed.planning.methods import METHODS

    if not name or not all(letter.isalnum() or letter in "-+._" for letter in name):
        raise InputError(f"expected a method's name of letters, digits and -+._, got {name!r}")
    if name in METHODS:
        raise InputError(f"the library has a method {name!r}: choose another name")

    def register(function: _Function) -> _Function:
        # The same function again is a module that is imported a second time, as a notebook does.
        before = _REGISTERED.get(name, function)
        if (before.__module__, before.__qualname__) != (function.__module__, function.__qualname__):
            raise InputError(f"there is a method {name!r} already, {before.__module__}:{before.__qualname__}")
        _REGISTERED[name] = function
        return function

    return register


def own_names() -> list[str]:
    """Of the methods that were registered, and of those that installed packages offer."""
    return [*_REGISTERED, *(point.name for point in metadata.entry_points(group=ENTRY_POINTS))]


def own_method(name: str) -> OwnMethod | None:
    """The function of this name, or that ``package.module:function`` names; None where there is none."""
    if name in _REGISTERED:
        return _REGISTERED[name]
    for point in metadata.entry_points(group=ENTRY_POINTS, name=name):
        name = point.value
    return imported(name, what="method") if is_reference(name) else None


def planned_by(function: OwnMethod, budgets: Budgets, settings: PlanSettings) -> Plan:
    """The function's plan under the method's name, verified."""
    made = called(function, budgets, settings, what=f"the method {settings.method!r}")
    if not isinstance(made, Plan):
        raise InputError(f"expected a gdpfed.Plan of the method {settings.method!r}, got {type(made).__name__}")
    plan = dataclasses.replace(made, method=settings.method)
    try:
        plan.verify()
        assign(plan, budgets)
        if settings.against == "server" and plan.is_private and not plan.is_rotation:
            raise PrivacyError(
                "expected a rotation, whose promise holds against the server, got a plan with Poisson sampling: let "
                "the method follow settings.against, or plan against models"
            )
    except GdpfedError as error:
        raise type(error)(f"the plan of {settings.method!r} is refused: {error}") from None
    return plan
