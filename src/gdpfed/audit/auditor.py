"""`gdpfed audit`: every claim of a plan against canaries on the real path.

Place: over all other modules here. For each group and mechanism two views of the same canaries, and the sampler on its
own; beside each finding what a faultless mechanism gives at this size, and the smallest lack of noise that shows. For
integer sums also what lost ones tell (`losses`); and once, on the strictest group, a server that lies (`equivocation`):
clients are the same in every group. Then the controls, also on the strictest group.

Integer sums lose clients at the rate ``dropout``, and up to ``colluders`` of each cohort tell the server what they
know.

`alpha` is for the whole report: with probability 1 - alpha nothing in it contradicts a plan that keeps its word. It is
divided evenly among all claims.

Guarantees (tests of the same name):
  correct_code_is_never_flagged          three seeds, three budgets, both mechanisms, with losses and colluders.
  server_view_exceeds_the_release_epsilon   and stays below the server's own.
"""

import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from gdpfed.audit.bounds import Finding, ScoredCanaries, judge
from gdpfed.audit.canaries import MECHANISMS, Path, ViewedCanaries, float_path, integer_path, send_canaries
from gdpfed.audit.controls import CONTROLS, Control
from gdpfed.audit.equivocation import tell_two_stories
from gdpfed.audit.ideal import ideal_canaries, smallest_visible
from gdpfed.audit.integer_release import every_size_complete
from gdpfed.audit.losses import rounds_with_losses, watch_losses
from gdpfed.audit.privacy_curves import CurveFamily, ReleaseFamily, ServerFamily
from gdpfed.audit.sampler import rounds_watched, watch_the_others
from gdpfed.errors import InputError, suggestion
from gdpfed.planning.plan import Plan
from gdpfed.planning.plan_file import plan_hash
from gdpfed.privacy.adversaries import server_epsilon
from gdpfed.secure.noise_shares import Tolerance

__all__ = ["AuditReport", "AuditRow", "ControlResult", "audit_plan", "families", "finding_as_json", "group_place"]

_PATHS = {"float": float_path, "integer": integer_path}
# Sampling, clipping and noise are the group's own; the sampler is watched once for each.
_OTHERS, _LOSSES, _LIES = "others", "losses", "lies"

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
    dropout: float
    colluders: float
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
            "dropout": self.dropout,
            "colluders": self.colluders,
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


@dataclass(frozen=True, kw_only=True)
class _Sending:
    """What is the same for all claims of a report; ``alpha`` is that of each."""

    num_canaries: int
    seed: int
    tolerance: Tolerance
    alpha: float


def audit_plan(
    plan: Plan,
    *,
    seed: int,
    num_canaries: int = 10_000,
    alpha: float = 1e-3,
    mechanisms: Sequence[str] = MECHANISMS,
    places: Sequence[int] | None = None,
    dropout: float = 0.1,
    colluders: float = 0.1,
    with_controls: bool = True,
    with_power: bool = True,
    say: Say = lambda _: None,
) -> AuditReport:
    """Tries to contradict every claim of ``plan``; ``places`` are the groups to audit, all by default."""
    _check(plan, mechanisms, alpha)
    started = time.perf_counter()
    audited = range(len(plan.groups)) if places is None else places
    with_integers = "integer" in mechanisms
    each = alpha / (len(audited) * (2 * len(mechanisms) + 1 + with_integers) + with_integers)
    sending = _Sending(
        num_canaries=num_canaries,
        seed=seed,
        tolerance=every_size_complete(dropout=dropout, colluders=colluders),
        alpha=each,
    )
    strictest = min(audited, key=lambda index: plan.groups[index].epsilon)
    rows: list[AuditRow] = []
    for place in audited:
        rows += _group_rows(plan, place, mechanisms, sending, with_power=with_power, say=say)
    if with_integers:
        say("a server that lies")
        told = tell_two_stories(plan, place=strictest, num_canaries=num_canaries, seed=seed)
        rows.append(_row(plan, strictest, "protocol", _LIES, _judged(plan, strictest, _LIES, told, each)))
    controls: list[ControlResult] = []
    if with_controls:
        for control in CONTROLS:
            if not control.is_mistake(plan, place=strictest):
                continue
            say(f"control: {control.name}")
            controls.append(_run_control(control, plan, strictest, sending))
    return AuditReport(
        method=plan.method,
        plan_hash=plan_hash(plan),
        num_rounds=plan.num_rounds,
        num_canaries=num_canaries,
        dropout=dropout,
        colluders=colluders,
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
    mechanism = plan.mechanism(group)
    if view == _LIES:
        claim = server_epsilon(noise_multiplier=group.noise_multiplier, num_participations=1, delta=group.delta)
        once = dataclasses.replace(mechanism, num_rounds=1, sampling_rate=1.0)
        family: CurveFamily = ServerFamily(mechanism=once, delta=group.delta)
        return judge(canaries, family, claim=claim, delta=group.delta, alpha=alpha)
    claim = group.epsilon_server if view == "server" else group.epsilon_release
    if view in (_OTHERS, _LOSSES):
        # So few rounds cost less than all; what is claimed for all of them is claimed for these.
        rounds = rounds_watched(plan, place=place) if view == _OTHERS else rounds_with_losses(plan, place=place)
        family = ReleaseFamily(mechanism=dataclasses.replace(mechanism, num_rounds=rounds), delta=group.delta)
        return judge(canaries, family, claim=claim, delta=group.delta, alpha=alpha, measure_noise=False)
    return judge(canaries, families(plan, place=place)[view], claim=claim, delta=group.delta, alpha=alpha)


def _row(plan: Plan, place: int, mechanism: str, view: str, finding: Finding) -> AuditRow:
    """One without a faultless mechanism beside it."""
    return AuditRow(
        group=plan.groups[place].name, mechanism=mechanism, view=view, finding=finding, tight=None, visible_noise=None
    )


def _group_rows(
    plan: Plan,
    place: int,
    mechanisms: Sequence[str],
    sending: _Sending,
    *,
    with_power: bool,
    say: Say,
) -> list[AuditRow]:
    group, alpha = plan.groups[place], sending.alpha
    num_canaries, seed = sending.num_canaries, sending.seed
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
        seen = _seen(_PATHS[name], plan, place, sending)
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
    rows.append(_row(plan, place, "sampler", _OTHERS, _judged(plan, place, _OTHERS, watched, alpha)))
    if "integer" in mechanisms:
        say(f"{group.name}: lost sums")
        lossy = watch_losses(plan, place=place, seed=seed, colluders=sending.tolerance.colluding_fraction)
        rows.append(_row(plan, place, "integer", _LOSSES, _judged(plan, place, _LOSSES, lossy, alpha)))
    return rows


def _seen(path: Path, plan: Plan, place: int, sending: _Sending) -> ViewedCanaries:
    return send_canaries(
        path,
        plan,
        place=place,
        num_canaries=sending.num_canaries,
        seed=sending.seed,
        tolerance=sending.tolerance,
    )


def _run_control(control: Control, plan: Plan, place: int, sending: _Sending) -> ControlResult:
    seed = sending.seed
    scored: dict[str, ScoredCanaries] = {}
    if control.sampler is not None:
        scored[_OTHERS] = watch_the_others(plan, place=place, seed=seed, sampler=control.sampler)
    if control.path is not None:
        seen = _seen(control.path, plan, place, sending)
        scored.update(release=seen.release, server=seen.server)
    if control.losing is not None:
        colluders = sending.tolerance.colluding_fraction
        scored[_LOSSES] = watch_losses(plan, place=place, seed=seed, colluders=colluders, make_release=control.losing)
    if control.believed is not None:
        scored[_LIES] = tell_two_stories(
            plan, place=place, num_canaries=sending.num_canaries, seed=seed, tolerance=control.believed
        )
    findings = {view: _judged(plan, place, view, canaries, sending.alpha) for view, canaries in scored.items()}
    # The release view if it shows there: that is the claim that most people read.
    view = next((name for name, finding in findings.items() if finding.contradicts), next(iter(findings)))
    return ControlResult(
        name=control.name,
        group=plan.groups[place].name,
        flagged=findings[view].contradicts,
        view=view,
        finding=findings[view],
    )
