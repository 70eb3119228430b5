"""`gdpfed audit`: every claim of a plan against canaries on the real path.

Place: over all other modules here. For each group and mechanism two views of the same canaries, and the sampler on its
own; beside each finding what a faultless mechanism gives at this size, and the smallest lack of noise that shows. Then
the controls, on the strictest group.

`alpha` is for the whole report: with probability 1 - alpha nothing in it contradicts a plan that keeps its word. It is
divided evenly among all claims.

Guarantees (tests of the same name):
  correct_code_is_never_flagged          three seeds, three budgets, both mechanisms.
  server_view_exceeds_the_release_epsilon   and stays below the server's own.
"""

import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from gdpfed.audit.bounds import Finding, ScoredCanaries, judge
from gdpfed.audit.canaries import MECHANISMS, float_path, integer_path, send_canaries
from gdpfed.audit.controls import CONTROLS, Control
from gdpfed.audit.curves import CurveFamily, ReleaseFamily, ServerFamily
from gdpfed.audit.ideal import ideal_canaries, smallest_visible
from gdpfed.audit.sampler import rounds_watched, watch_the_others
from gdpfed.errors import InputError, suggestion
from gdpfed.planning.plan import Plan
from gdpfed.planning.plan_file import plan_hash

__all__ = ["AuditReport", "AuditRow", "ControlResult", "audit_plan", "families", "finding_as_json", "group_place"]

_PATHS = {"float": float_path, "integer": integer_path}
# Sampling, clipping and noise are the group's own; the sampler is watched once for each.
_OTHERS = "others"

Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class AuditRow:
    """One claim. ``tight`` is what a faultless mechanism gave; ``visible_noise`` the largest fraction of the planned
    noise that would have been flagged (None: nothing above a fifth would)."""

    group: str
    mechanism: str
    view: str
    finding: Finding
    tight: Finding | None
    visible_noise: float | None


@dataclass(frozen=True, kw_only=True)
class ControlResult:
    """A known mistake, and whether the audit saw it."""

    name: str
    group: str
    flagged: bool
    view: str
    finding: Finding


@dataclass(frozen=True, kw_only=True)
class AuditReport:
    """All findings of one audit."""

    method: str
    plan_hash: str
    num_rounds: int
    num_canaries: int
    seed: int
    alpha: float
    alpha_each: float
    rows: tuple[AuditRow, ...]
    controls: tuple[ControlResult, ...]
    deltas: tuple[float, ...]
    seconds: float

    @property
    def contradicted(self) -> bool:
        """Whether any claim is false, with confidence 1 - alpha."""
        return any(row.finding.contradicts for row in self.rows)

    @property
    def is_sighted(self) -> bool:
        """Whether every control that was run was flagged."""
        return all(control.flagged for control in self.controls)

    def as_json(self) -> dict[str, Any]:
        """Ready for json.dumps."""
        return {
            "contradicted": self.contradicted,
            "every_control_flagged": self.is_sighted if self.controls else None,
            "method": self.method,
            "plan": self.plan_hash,
            "num_rounds": self.num_rounds,
            "canaries": self.num_canaries,
            "seed": self.seed,
            "alpha": self.alpha,
            "alpha_of_each_claim": self.alpha_each,
            "deltas": list(self.deltas),
            "claims": [
                {
                    "group": row.group,
                    "mechanism": row.mechanism,
                    "view": row.view,
                    **finding_as_json(row.finding),
                    "tight_mechanism": None if row.tight is None else finding_as_json(row.tight),
                    "smallest_visible_noise": row.visible_noise,
                }
                for row in self.rows
            ],
            "controls": [
                {
                    "name": control.name,
                    "group": control.group,
                    "flagged": control.flagged,
                    "view": control.view,
                    **finding_as_json(control.finding),
                }
                for control in self.controls
            ],
            "seconds": round(self.seconds, 2),
        }


def finding_as_json(finding: Finding) -> dict[str, Any]:
    """Ready for json.dumps; an infinite claim is null."""
    content = {**dataclasses.asdict(finding), "contradicts": finding.contradicts}
    return {name: None if value == math.inf else value for name, value in content.items()}


def families(plan: Plan, *, place: int) -> dict[str, CurveFamily]:
    """The curves of both views of one group."""
    group = plan.groups[place]
    mechanism = plan.mechanism(group)
    return {
        "release": ReleaseFamily(mechanism=mechanism, delta=group.delta),
        "server": ServerFamily(mechanism=mechanism, delta=group.delta, max_participations=plan.max_participations),
    }


def group_place(plan: Plan, name: str) -> int:
    """The place of the group of this name."""
    names = [group.name for group in plan.groups]
    if name not in names:
        raise InputError(f"expected a group of the plan ({', '.join(names)}), got {name!r}{suggestion(name, names)}")
    return names.index(name)


def _check(plan: Plan, mechanisms: Sequence[str], alpha: float) -> None:
    if not plan.is_private:
        raise InputError(f"expected a plan that promises something, got {plan.method!r}, which has no privacy to audit")
    for name in mechanisms:
        if name not in MECHANISMS:
            raise InputError(f"expected mechanism 'float' or 'integer', got {name!r}{suggestion(name, MECHANISMS)}")
    if not 0 < alpha < 0.5:
        raise InputError(f"expected 0 < alpha < 0.5, got alpha={alpha}")


def audit_plan(
    plan: Plan,
    *,
    seed: int,
    num_canaries: int = 10_000,
    alpha: float = 1e-3,
    mechanisms: Sequence[str] = MECHANISMS,
    places: Sequence[int] | None = None,
    with_controls: bool = True,
    with_power: bool = True,
    say: Say = lambda _: None,
) -> AuditReport:
    """Tries to contradict every claim of ``plan``; ``places`` are the groups to audit, all by default."""
    _check(plan, mechanisms, alpha)
    started = time.perf_counter()
    audited = range(len(plan.groups)) if places is None else places
    each = alpha / (len(audited) * (2 * len(mechanisms) + 1))
    rows: list[AuditRow] = []
    for place in audited:
        rows += _group_rows(plan, place, mechanisms, num_canaries, seed, each, with_power=with_power, say=say)
    controls: list[ControlResult] = []
    if with_controls:
        place = min(audited, key=lambda index: plan.groups[index].epsilon)
        for control in CONTROLS:
            if not control.is_mistake(plan, place=place):
                continue
            say(f"control: {control.name}")
            controls.append(_run_control(control, plan, place, num_canaries, seed, each))
    return AuditReport(
        method=plan.method,
        plan_hash=plan_hash(plan),
        num_rounds=plan.num_rounds,
        num_canaries=num_canaries,
        seed=seed,
        alpha=alpha,
        alpha_each=each,
        rows=tuple(rows),
        controls=tuple(controls),
        deltas=tuple(plan.groups[place].delta for place in audited),
        seconds=time.perf_counter() - started,
    )


def _judged(plan: Plan, place: int, view: str, canaries: ScoredCanaries, alpha: float) -> Finding:
    group = plan.groups[place]
    claim = group.epsilon_server if view == "server" else group.epsilon_release
    if view == _OTHERS:
        # So few rounds cost less than all; what is claimed for all of them is claimed for these.
        short = dataclasses.replace(plan.mechanism(group), num_rounds=rounds_watched(plan, place=place))
        family: CurveFamily = ReleaseFamily(mechanism=short, delta=group.delta)
        return judge(canaries, family, claim=claim, delta=group.delta, alpha=alpha, measure_noise=False)
    return judge(canaries, families(plan, place=place)[view], claim=claim, delta=group.delta, alpha=alpha)


def _group_rows(
    plan: Plan,
    place: int,
    mechanisms: Sequence[str],
    num_canaries: int,
    seed: int,
    alpha: float,
    *,
    with_power: bool,
    say: Say,
) -> list[AuditRow]:
    group = plan.groups[place]
    tight: dict[str, Finding] = {}
    visible: dict[str, float | None] = {}
    if with_power:
        say(f"{group.name}: what can be seen")
        ideal = ideal_canaries(plan, place=place, num_canaries=num_canaries, seed=seed)
        for view in ("release", "server"):
            tight[view] = _judged(plan, place, view, getattr(ideal, view), alpha)
        visible = smallest_visible(
            plan,
            place=place,
            num_canaries=num_canaries,
            seed=seed,
            families=families(plan, place=place),
            delta=group.delta,
            alpha=alpha,
        )
    rows = []
    for name in mechanisms:
        say(f"{group.name}: canaries, {name} sums")
        seen = send_canaries(_PATHS[name], plan, place=place, num_canaries=num_canaries, seed=seed)
        rows += [
            AuditRow(
                group=group.name,
                mechanism=name,
                view=view,
                finding=_judged(plan, place, view, getattr(seen, view), alpha),
                tight=tight.get(view),
                visible_noise=visible.get(view),
            )
            for view in ("release", "server")
        ]
    say(f"{group.name}: the sampler")
    watched = watch_the_others(plan, place=place, seed=seed)
    finding = _judged(plan, place, _OTHERS, watched, alpha)
    rows.append(
        AuditRow(group=group.name, mechanism="sampler", view=_OTHERS, finding=finding, tight=None, visible_noise=None)
    )
    return rows


def _run_control(control: Control, plan: Plan, place: int, num_canaries: int, seed: int, alpha: float) -> ControlResult:
    findings: dict[str, Finding] = {}
    if control.sampler is not None:
        watched = watch_the_others(plan, place=place, seed=seed, sampler=control.sampler)
        findings[_OTHERS] = _judged(plan, place, _OTHERS, watched, alpha)
    if control.path is not None:
        seen = send_canaries(control.path, plan, place=place, num_canaries=num_canaries, seed=seed)
        for view in ("release", "server"):
            findings[view] = _judged(plan, place, view, getattr(seen, view), alpha)
    # The release view if it shows there: that is the claim that most people read.
    view = next((name for name, finding in findings.items() if finding.contradicts), next(iter(findings)))
    return ControlResult(
        name=control.name,
        group=plan.groups[place].name,
        flagged=findings[view].contradicts,
        view=view,
        finding=findings[view],
    )
