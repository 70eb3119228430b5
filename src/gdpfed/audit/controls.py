"""Known mistakes, each put into the real path: an audit that does not see them is worth nothing.

Place: beside the audit, run with it. Every control is the plan's own path, or the protocol's, with one thing wrong,
judged against the plan's own claims.

Guarantees (tests of the same name):
  every_control_is_flagged     at three budgets.
"""

import dataclasses
import functools
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from gdpfed import streams
from gdpfed.audit.canaries import CanaryPath, MakeRelease, float_path
from gdpfed.audit.equivocation import ONE_LIAR
from gdpfed.audit.integer_release import IntegerRelease
from gdpfed.audit.populations import Sampler
from gdpfed.audit.privacy_curves import AuditedGroup
from gdpfed.planning.plan import Plan
from gdpfed.secure.encoding import PlannedSum
from gdpfed.secure.noise_shares import NoiseShare, Tolerance
from gdpfed.secure.randomness import Randomness
from gdpfed.training.releases.float_sums import clipped_sums
from gdpfed.training.rounds import IntArray, Release, Released, Sample, TrainingState, Updates, cohort_sizes

__all__ = ["CONTROLS", "Control"]


@dataclass(frozen=True, kw_only=True)
class Control:
    """A mistake: in the canaries' path, the sampler, what is released of lost sums, or the numbers that clients use."""

    name: str
    path: CanaryPath | None = None
    sampler: Sampler | None = None
    losing: MakeRelease | None = None
    believed: Tolerance | None = None

    def is_mistake(self, audited: AuditedGroup) -> bool:
        """Whether it changes anything: if all take part the cohort's size is fixed, and one round has one key."""
        if self.sampler is not None:
            return audited.group.sampling_rate < 1
        return audited.plan.num_rounds > 1 or self.path is None or self.path.noise_round(1) == 1


def _divided_by_the_cohort(share: NoiseShare) -> int:
    """std / cohort for std / sqrt(cohort)."""
    return max(share.cohort * share.variance // share.cohort**2, 100)


def _thrice_the_clip_norm(plan: Plan) -> Plan:
    """The same noise on updates that are three times too long."""
    groups = tuple(
        dataclasses.replace(group, clip_norm=3 * group.clip_norm, noise_multiplier=group.noise_multiplier / 3)
        for group in plan.groups
    )
    return dataclasses.replace(plan, groups=groups, clip_norm=3 * plan.clip_norm)


def _without_noise(plan: Plan, assignment: IntArray, updates: Updates, /, **_: object) -> Release:
    """`float_sums.float_release`, but for the noise."""

    def release(state: TrainingState, clients: IntArray) -> Released:
        sums, _, _ = clipped_sums(state, plan, assignment, clients, updates)
        if plan.release == "pooled":
            sums = [torch.stack(sums).sum(0)]
        return Released(sums=sums, clients=clients, cohort=cohort_sizes(plan, assignment, clients))

    return release


def _fixed_size(plan: Plan, assignment: IntArray, seed: int) -> Sample:
    """As many clients of each group as are expected, no more and no fewer."""

    def sample(state: TrainingState) -> IntArray:
        generator = streams.generator(seed, "sample", round_number=state.round_number)
        chosen = []
        for index, group in enumerate(plan.groups):
            members = np.flatnonzero(assignment == index)
            chosen.append(generator.permutation(members)[: round(group.sampling_rate * len(members))])
        return np.sort(np.concatenate(chosen))

    return sample


def _zeros(planned: PlannedSum, **_randomness: Randomness | None) -> NDArray[np.uint32]:
    """What only a cohort with somebody in it can give up."""
    return np.zeros(planned.num_params, dtype=np.uint32)


@dataclass(frozen=True, kw_only=True)
class _NobodyLies(Tolerance):
    """A quorum of more than half: two quorums have a client in common, which may be a colluder."""

    def liars(self, cohort: int) -> int:  # noqa: ARG002 - the mistake is not to ask for the cohort
        """None."""
        return 0


CONTROLS: tuple[Control, ...] = (
    Control(
        name="noise shares divided by the cohort, not by its root",
        path=CanaryPath(make_release=functools.partial(IntegerRelease, share_variance=_divided_by_the_cohort)),
    ),
    Control(
        name="updates clipped at three times the norm", path=dataclasses.replace(float_path, plan=_thrice_the_clip_norm)
    ),
    Control(name="a cohort of fixed size", sampler=_fixed_size),
    Control(name="no noise", path=CanaryPath(make_release=_without_noise)),
    Control(name="one noise key for all rounds", path=dataclasses.replace(float_path, noise_round=lambda _round: 0)),
    Control(name="zeros for a lost sum", losing=functools.partial(IntegerRelease, lost_sum=_zeros)),
    Control(name="a quorum of n // 2 + 1 with a colluder", believed=_NobodyLies(dropout_rate=ONE_LIAR.dropout_rate)),
)
