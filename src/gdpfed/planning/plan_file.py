"""A plan as text: TOML to keep, JSON for machines, a hash to sign.

Place: beside the plan. `load_plan` trusts nothing: unknown keys are errors, and the plan is verified before it is
returned.

Guarantees (tests of the same name):
  round_trip_is_exact        what was saved is what is loaded, to the last bit, with the same hash.
  overspending_file_is_refused   a file edited by hand so that a group overspends does not load.
  unknown_key_is_refused     with the nearest known key in the message.
"""

import dataclasses
import hashlib
import json
import math
import os
from pathlib import Path
from typing import Any

import tomli_w

from gdpfed.config import from_mapping, parse_toml, read_toml
from gdpfed.errors import InputError
from gdpfed.planning.plan import Group, Guarantee, Plan

__all__ = ["FORMAT", "load_plan", "plan_as_json", "plan_from_toml", "plan_hash", "plan_to_toml", "save_plan"]

FORMAT = 1
_HEADER = """\
# A gdpfed plan: what is fixed, and public, before training starts. Made by a program and verified on load.
# epsilon is what a group promises at its delta, for the presence of one client (add or remove).
# epsilon_release is the cost against whoever sees only the released models; epsilon_server against the server, which
# knows who took part, for a client that takes part as often as it can.
"""


def _mapping(plan: Plan) -> dict[str, Any]:
    content = dataclasses.asdict(plan)
    groups = content.pop("groups")
    content["linked"] = [list(counts) for counts in plan.linked]
    # TOML has no null: an absent key is None. What came later is left out where it is off: hashes stay.
    if not plan.averaging:
        del content["averaging"]
    scalars = {name: value for name, value in content.items() if value is not None}
    return {"format": FORMAT, **scalars, "groups": groups}


def plan_to_toml(plan: Plan) -> str:
    """The plan as TOML; floats are written so that they read back to the same bits."""
    return _HEADER + tomli_w.dumps(_mapping(plan))


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
    path = Path(path)
    if path.is_dir():
        raise InputError(f"expected the name of a file to write, got {str(path)!r}, which is a folder: add plan.toml")
    temporary = path.with_name(path.name + ".part")
    try:
        temporary.write_text(plan_to_toml(plan), encoding="utf-8")
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise InputError(f"cannot write {str(path)!r}: {error.strerror or error}") from None


def load_plan(path: str | Path) -> Plan:
    """Reads and verifies the plan in a file."""
    return plan_from_toml(read_toml(path), source=str(path))


def _number(value: float | None) -> float | None:
    """JSON has no infinity: no promise is null."""
    return None if value is None or math.isinf(value) else value


def _guarantee(guarantee: Guarantee | None) -> dict[str, Any] | None:
    if guarantee is None:
        return None
    return {**dataclasses.asdict(guarantee), "epsilon": _number(guarantee.epsilon)}


def plan_as_json(plan: Plan) -> dict[str, Any]:
    """The plan and all that follows from it, ready for json.dumps."""
    groups = []
    for group in plan.groups:
        view = {
            name: _number(value) if isinstance(value, float) else value
            for name, value in dataclasses.asdict(plan.server_view(group)).items()
        }
        content = {
            name: _number(value) if isinstance(value, float) else value
            for name, value in dataclasses.asdict(group).items()
        }
        groups.append(
            {
                **content,
                "expected_cohort": group.expected_cohort,
                "noise_multiplier_squared": group.noise_multiplier**2,
                "noise_std": group.noise_std,
                "server_view": view,
            }
        )
    return {
        "hash": plan_hash(plan),
        "method": plan.method,
        "private": plan.is_private,
        "adjacency": plan.adjacency,
        "sampling": plan.sampling,
        "accountant": plan.accountant,
        "accountant_version": plan.accountant_version,
        "num_clients": plan.num_clients,
        "num_rounds": plan.num_rounds,
        "participation": plan.participation,
        "expected_cohort": plan.expected_cohort,
        "clip_norm": _number(plan.clip_norm),
        "release": plan.release,
        "grouping": plan.grouping,
        "server_learning_rate": plan.server_learning_rate,
        "averaging": plan.averaging,
        "max_participations": plan.max_participations,
        "clients_per_person": plan.clients_per_person,
        "step_size": plan.step_size,
        "signal_to_noise": _number(plan.signal_to_noise),
        "noise_at_equal_step": plan.noise_at_equal_step,
        "paper_noise_magnitude": plan.paper_noise_magnitude,
        "mean_waste": plan.mean_waste,
        "system_guarantee": _guarantee(plan.system_guarantee),
        "person_guarantee": _guarantee(plan.person_guarantee),
        "groups": groups,
    }
