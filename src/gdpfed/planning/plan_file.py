"""A plan as text: TOML to keep, JSON for machines, a hash to sign.

Place: beside the plan. `load_plan` trusts nothing: unknown keys are errors, and the plan is verified
(`Plan.verify`) before it is returned.

Guarantees (tests of the same name):
  round_trip_is_exact        what was saved is what is loaded, to the last bit, with the same hash.
  overspending_file_is_refused   a file edited by hand so that a group overspends does not load.
  unknown_key_is_refused     with the nearest known key in the message.
"""

import dataclasses
import hashlib
import json
import math
from pathlib import Path
from typing import Any

import tomli_w

from gdpfed.config import from_mapping, parse_toml, read_toml
from gdpfed.errors import InputError
from gdpfed.files import write_whole
from gdpfed.planning.plan import Group, Guarantee, Plan

__all__ = ["FORMAT", "load_plan", "plan_as_json", "plan_from_toml", "plan_hash", "plan_to_toml", "save_plan"]

FORMAT = 1
_HEADER = """\
# A gdpfed plan: what is fixed, and public, before training starts. Made by a program and verified on load.
# epsilon is what a group promises at its delta, for the presence of one client (add or remove).
# epsilon_release is the cost against whoever sees only the released models; epsilon_server against the server, which
# knows who took part, for a client that takes part as often as it can.
"""
_ROTATION_HEADER = """\
# A gdpfed plan: what is fixed, and public, before training starts. Made by a program and verified on load.
# epsilon is what a group promises at its delta, against whoever sees the released models, and the server: between a
# client and the same client with all of its updates replaced by zero. Each client is asked so often (asks), in a public
# order, and tosses a secret coin each time (sampling_rate). Not hidden: being enrolled, and when one is asked.
"""
# Fields and figures of merit, in the order of the JSON.
_SHOWN_IN_JSON = (
    "adjacency", "sampling", "accountant", "accountant_version", "num_clients", "num_rounds", "participation",
    "expected_cohort", "clip_norm", "normalised", "release", "grouping", "server_learning_rate", "adaptive_step",
    "averaging", "max_participations", "clients_per_person", "person_epsilon", "asks", "trainings", "min_roster",
    "bands", "adversary", "step_size", "signal_to_noise", "noise_at_equal_step", "paper_noise_magnitude", "mean_waste",
)  # fmt: skip


def _mapping(plan: Plan) -> dict[str, Any]:
    content = dataclasses.asdict(plan)
    groups = content.pop("groups")
    content["linked"] = [list(counts) for counts in plan.linked]
    # TOML has no null: an absent key is None. What came later is left out where it is off: hashes stay.
    for name in ("averaging", "normalised", "adaptive_step"):
        if not content[name]:
            del content[name]
    if not plan.is_rotation:
        groups = [{name: value for name, value in group.items() if name != "asked"} for group in groups]
    scalars = {name: value for name, value in content.items() if value is not None}
    return {"format": FORMAT, **scalars, "groups": groups}


def plan_to_toml(plan: Plan) -> str:
    """The plan as TOML; floats are written so that they read back to the same bits."""
    return (_ROTATION_HEADER if plan.is_rotation else _HEADER) + tomli_w.dumps(_mapping(plan))


def plan_hash(plan: Plan) -> str:
    """SHA-256 of the plan's content, independent of comments and layout."""
    canonical = json.dumps(_mapping(plan), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def plan_from_toml(text: str, *, source: str = "plan", is_verified: bool = False) -> Plan:
    """Reads a plan and verifies it, unless this very text was; PrivacyError if a promise in it does not hold."""
    content = parse_toml(text, source=repr(source))
    if content.pop("format", None) != FORMAT:
        raise InputError(f"expected a gdpfed plan with format = {FORMAT} in {source!r}: is it a plan file?")
    groups = content.pop("groups", None)
    if not (isinstance(groups, list) and all(isinstance(group, dict) for group in groups)):
        raise InputError(f"expected [[groups]] tables in {source!r}")
    content["groups"] = tuple(
        from_mapping(Group, group, source=f"{source}, group {number}") for number, group in enumerate(groups, start=1)
    )
    plan = from_mapping(Plan, content, source=source)
    if not is_verified:
        plan.verify()
    return plan


def save_plan(plan: Plan, path: str | Path) -> None:
    """Writes the plan, whole or not at all."""
    write_whole(Path(path), plan_to_toml(plan).encode())


def load_plan(path: str | Path) -> Plan:
    """Reads and verifies the plan in a file."""
    return plan_from_toml(read_toml(path), source=str(path))


def _without_infinities(content: dict[str, Any]) -> dict[str, Any]:
    """JSON has no infinity: no promise is null."""
    return {name: None if value == math.inf else value for name, value in content.items()}


def _guarantee(guarantee: Guarantee | None) -> dict[str, Any] | None:
    return None if guarantee is None else _without_infinities(dataclasses.asdict(guarantee))


def plan_as_json(plan: Plan) -> dict[str, Any]:
    """The plan and all that follows from it, ready for json.dumps."""
    groups = [
        {
            **_without_infinities(dataclasses.asdict(group)),
            "expected_cohort": group.expected_cohort,
            "noise_multiplier_squared": group.noise_multiplier**2,
            "noise_std": group.noise_std,
            "server_view": _without_infinities(dataclasses.asdict(plan.server_view(group))),
        }
        for group in plan.groups
    ]
    return {
        "hash": plan_hash(plan),
        "method": plan.method,
        "private": plan.is_private,
        **_without_infinities({name: getattr(plan, name) for name in _SHOWN_IN_JSON}),
        "system_guarantee": _guarantee(plan.system_guarantee),
        "person_guarantee": _guarantee(plan.person_guarantee),
        "groups": groups,
    }
