"""`gdpfed audit`: every claim of a plan against canaries on the real path.

Place: over all other modules here. For each group and mechanism two views of the same canaries, and the sampler on its
own; beside each finding what a faultless mechanism gives at this size, and the smallest lack of noise that shows. For
integer sums, which lose clients at the rate ``dropout`` while up to ``colluders`` of each cohort tell the server what
they know, also what lost ones tell (`populations`). Once, on the strictest group, a server that lies (`equivocation`),
since clients are the same in every group; and the controls.

In a rotation both views are held against one epsilon. There is no sampler to look at, since everybody knows who is
asked, and for the same reason a lost sum tells of nobody.

`alpha` is for the whole report: with probability 1 - alpha nothing in it contradicts a plan that keeps its word. It is
divided evenly among all claims.

Guarantees (tests of the same name):
  correct_code_is_never_flagged          three seeds, three budgets, both mechanisms, with losses and colluders.
  server_view_exceeds_the_release_epsilon   and stays below the server's own.
  a_rotation_stands_against_the_server   50 asks, a coin of 0.02, epsilon 0.5: nothing is contradicted.
"""

import dataclasses
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from gdpfed.audit.bounds import CanaryFinding, ScoredCanaries, judge
from gdpfed.audit.canaries import MECHANISMS, PATHS, check_canaries, ideal_canaries, send_canaries, smallest_visible
from gdpfed.audit.controls import CONTROLS, Control
from gdpfed.audit.equivocation import tell_two_stories
from gdpfed.audit.integer_release import every_size_complete
from gdpfed.audit.populations import rounds_watched, rounds_with_losses, watch_losses, watch_the_others
from gdpfed.audit.privacy_curves import AuditedGroup, CurveFamily, ReleaseFamily, ServerFamily
from gdpfed.errors import InputError, expect, expect_word
from gdpfed.planning.plan import ADJACENCIES, Plan, SamplingKind
from gdpfed.planning.plan_file import plan_hash
from gdpfed.privacy.adversaries import server_epsilon
from gdpfed.secure.noise_shares import Tolerance

__all__ = ["AuditReport", "AuditRow", "ControlResult", "audit_plan", "check_auditable", "index_of_group"]

_VIEWS = ("release", "server")
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
    finding: CanaryFinding
    tight: CanaryFinding | None = None
    visible_noise: float | None = None

    def as_json(self) -> dict[str, Any]:
        """Ready for json.dumps."""
        facts = {"group": self.group, "mechanism": self.mechanism, "view": self.view}
        return {
            **facts,
            **self.finding.as_json(),
            "tight_mechanism": None if self.tight is None else self.tight.as_json(),
            "smallest_visible_noise": self.visible_noise,
        }


@dataclass(frozen=True, kw_only=True)
class ControlResult:
    """A known mistake, and whether the audit saw it."""

    name: str
    group: str
    view: str
    finding: CanaryFinding

    @property
    def flagged(self) -> bool:
        """Whether the finding contradicts the claim, as it should."""
        return self.finding.contradicts

    def as_json(self) -> dict[str, Any]:
        """Ready for json.dumps."""
        facts = {"name": self.name, "group": self.group, "flagged": self.flagged, "view": self.view}
        return {**facts, **self.finding.as_json()}


@dataclass(frozen=True, kw_only=True)
class AuditReport:
    """All findings of one audit."""

    method: str
    plan_hash: str
    sampling: SamplingKind
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
            "sampling": self.sampling,
            "num_rounds": self.num_rounds,
            "canaries": self.num_canaries,
            "dropout": self.dropout,
            "colluders": self.colluders,
            "seed": self.seed,
            "alpha": self.alpha,
            "alpha_of_each_claim": self.alpha_each,
            "deltas": list(self.deltas),
            "claims": [row.as_json() for row in self.rows],
            "controls": [control.as_json() for control in self.controls],
            "seconds": round(self.seconds, 2),
        }


def index_of_group(plan: Plan, name: str) -> int:
    """The index of the group of this name."""
    names = [group.name for group in plan.groups]
    expect_word("a group of the plan among", name, names)
    return names.index(name)


def check_auditable(plan: Plan, *, alpha: float) -> None:
    """Refuses a plan without a promise, and an error probability that says nothing."""
    if not plan.is_private:
        raise InputError(f"expected a plan that promises something, got {plan.method!r}, which has no privacy to audit")
    if plan.bands is not None:
        raise InputError("expected independent noise, got correlated noise: audit the same plan without bands")
    expect(0 < alpha < 0.5, "0 < alpha < 0.5", alpha=alpha)


def audit_plan(
    plan: Plan,
    *,
    seed: int,
    num_canaries: int = 10_000,
    alpha: float = 1e-3,
    mechanisms: Sequence[str] = MECHANISMS,
    group_indices: Sequence[int] | None = None,
    dropout: float = 0.1,
    colluders: float = 0.1,
    with_controls: bool = True,
    with_power: bool = True,
    say: Say = lambda _: None,
) -> AuditReport:
    """Tries to contradict every claim of ``plan``; ``group_indices`` are the groups to audit, all by default."""
    check_auditable(plan, alpha=alpha)
    check_canaries(num_canaries)
    for name in mechanisms:
        expect_word("mechanism", name, MECHANISMS)
    started = time.perf_counter()
    indices = range(len(plan.groups)) if group_indices is None else group_indices
    with_integers = "integer" in mechanisms
    of_coins = 0 if plan.is_rotation else 1 + with_integers
    alpha_each = alpha / (len(indices) * (2 * len(mechanisms) + of_coins) + with_integers)
    tolerance = every_size_complete(dropout=dropout, colluders=colluders)
    audits = [
        _GroupAudit(
            audited=AuditedGroup(plan=plan, group_index=index, num_canaries=num_canaries, seed=seed),
            tolerance=tolerance,
            alpha=alpha_each,
            say=say,
        )
        for index in indices
    ]
    strictest = min(audits, key=lambda audit: audit.audited.group.epsilon)
    rows = [row for audit in audits for row in audit.rows(mechanisms, with_power=with_power)]
    if with_integers:
        say("a server that lies")
        rows.append(strictest.row("protocol", _LIES, tell_two_stories(_asked_once(strictest.audited))))
    controls: list[ControlResult] = []
    for control in CONTROLS if with_controls else ():
        if control.is_mistake(strictest.audited):
            say(f"control: {control.name}")
            controls.append(strictest.control(control))
    return AuditReport(
        method=plan.method,
        plan_hash=plan_hash(plan),
        sampling=plan.sampling,
        num_rounds=plan.num_rounds,
        num_canaries=num_canaries,
        dropout=dropout,
        colluders=colluders,
        seed=seed,
        alpha=alpha,
        alpha_each=alpha_each,
        rows=tuple(rows),
        controls=tuple(controls),
        deltas=tuple(audit.audited.group.delta for audit in audits),
        seconds=time.perf_counter() - started,
    )


def _asked_once(audited: AuditedGroup) -> AuditedGroup:
    """With a plan without a rotation: one sum of the protocol, in which coins and rosters of a run are no matter."""
    groups = tuple(dataclasses.replace(group, asked=1.0) for group in audited.plan.groups)
    plan = dataclasses.replace(
        audited.plan, groups=groups, sampling="poisson", adjacency=ADJACENCIES["poisson"], asks=None, min_roster=None
    )
    return dataclasses.replace(audited, plan=plan)


@dataclass(frozen=True, kw_only=True)
class _GroupAudit:
    """All claims of one group; ``alpha`` is that of each."""

    audited: AuditedGroup
    tolerance: Tolerance
    alpha: float
    say: Say = lambda _: None

    def rows(self, mechanisms: Sequence[str], *, with_power: bool) -> list[AuditRow]:
        """Both views by every mechanism; where there are any, the sampler, and lost sums."""
        name = self.audited.group.name
        tight: dict[str, CanaryFinding] = {}
        visible: dict[str, float | None] = {}
        if with_power:
            self.say(f"{name}: what can be seen")
            ideal = ideal_canaries(self.audited)
            tight = {view: self._finding(view, ideal[view]) for view in _VIEWS}
            visible = smallest_visible(self.audited, alpha=self.alpha)
        rows = []
        for mechanism in mechanisms:
            self.say(f"{name}: canaries, {mechanism} sums")
            sent = send_canaries(PATHS[mechanism], self.audited, tolerance=self.tolerance)
            for view in _VIEWS:
                row = self.row(mechanism, view, sent[view])
                rows.append(dataclasses.replace(row, tight=tight.get(view), visible_noise=visible.get(view)))
        if self.audited.plan.is_rotation:
            return rows
        self.say(f"{name}: the sampler")
        rows.append(self.row("sampler", _OTHERS, watch_the_others(self.audited)))
        if "integer" in mechanisms:
            self.say(f"{name}: lost sums")
            lossy = watch_losses(self.audited, colluders=self.tolerance.colluding_fraction)
            rows.append(self.row("integer", _LOSSES, lossy))
        return rows

    def row(self, mechanism: str, view: str, canaries: ScoredCanaries) -> AuditRow:
        """One without a faultless mechanism beside it."""
        finding = self._finding(view, canaries)
        return AuditRow(group=self.audited.group.name, mechanism=mechanism, view=view, finding=finding)

    def control(self, control: Control) -> ControlResult:
        """Whether a known mistake is seen."""
        audited, tolerance = self.audited, self.tolerance
        scored: dict[str, ScoredCanaries] = {}
        if control.sampler is not None:
            scored[_OTHERS] = watch_the_others(audited, sampler=control.sampler)
        if control.path is not None:
            scored |= send_canaries(control.path, audited, tolerance=tolerance)
        if control.losing is not None:
            colluders = tolerance.colluding_fraction
            scored[_LOSSES] = watch_losses(audited, colluders=colluders, make_release=control.losing)
        if control.believed is not None:
            scored[_LIES] = tell_two_stories(_asked_once(audited), tolerance=control.believed)
        findings = {view: self._finding(view, canaries) for view, canaries in scored.items()}
        # The release view if it shows there: that is the claim that most people read.
        view = next((name for name, finding in findings.items() if finding.contradicts), next(iter(findings)))
        return ControlResult(name=control.name, group=audited.group.name, view=view, finding=findings[view])

    def _finding(self, view: str, canaries: ScoredCanaries) -> CanaryFinding:
        family, claim = self._claim(view)
        return judge(
            canaries,
            family,
            claim=claim,
            delta=self.audited.group.delta,
            alpha=self.alpha,
            measure_noise=view not in (_OTHERS, _LOSSES),
        )

    def _claim(self, view: str) -> tuple[CurveFamily, float]:
        """The curves that a view is held against, and the epsilon."""
        audited, delta = self.audited, self.audited.group.delta
        if view in _VIEWS:
            return audited.claims()[view]
        if view == _LIES:
            noise = audited.group.noise_multiplier
            once = dataclasses.replace(audited.mechanism, num_rounds=1, sampling_rate=1.0)
            claim = server_epsilon(noise_multiplier=noise, num_participations=1, delta=delta)
            return ServerFamily(mechanism=once, delta=delta), claim
        # So few rounds cost less than all; what is claimed for all of them is claimed for these.
        num_rounds = rounds_watched(audited) if view == _OTHERS else rounds_with_losses(audited)
        few = dataclasses.replace(audited.mechanism, num_rounds=num_rounds)
        return ReleaseFamily(mechanism=few, delta=delta), audited.group.epsilon_release
