"""Known mistakes, each put into the real path: an audit that does not see them is worth nothing.

Place: beside the audit, run with it. Every control is the plan's own path, or the protocol's, with one thing wrong,
judged against the plan's own claims.

Some are mistakes of one kind of participation only. With Poisson sampling: a cohort of fixed size, and zeros for a lost
sum, which tell that somebody was there. In a rotation everybody knows who is there; what must not be known is the coin:
  coins known to the server            whoever knows them needs no mixture.
  one coin for a whole run             in all rounds that one is asked for, or in none.
  no noise of those who send zero      the noise of a sum is sized by its roster.
  the coin in a hash                   of what went into the sum, say: that of zero is another one.
  answers that come early              three stds of a moment's jitter apart: a likelihood ratio of e^4.5 at the median.

Guarantees (tests of the same name):
  every_control_is_flagged     at three budgets.
  every_control_of_a_rotation_is_flagged     at 50 asks, with a coin of 0.02 and epsilon 0.5.
"""

import dataclasses
import functools
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from gdpfed import streams
from gdpfed.audit.canaries import CanaryPath, MakeRelease, Observed
from gdpfed.audit.equivocation import ONE_LIAR
from gdpfed.audit.integer_release import integer_release
from gdpfed.audit.populations import Sampler
from gdpfed.audit.privacy_curves import AuditedGroup, FloatArray
from gdpfed.audit.scores import release_scores, server_scores
from gdpfed.planning.plan import Group, Plan, SamplingKind
from gdpfed.secure.encoding import PlannedSum
from gdpfed.secure.noise_shares import NoiseShare, Tolerance
from gdpfed.secure.randomness import Randomness
from gdpfed.training.releases.float_sums import clipped_sums
from gdpfed.training.rounds import IntArray, Release, Released, Sample, TrainingState, Updates, cohort_sizes
from gdpfed.training.sampling import tossed

__all__ = ["CONTROLS", "Control"]


@dataclass(frozen=True, kw_only=True)
class Control:
    """A mistake: in the canaries' path, the sampler, what is released of lost sums, or the numbers that clients use;
    where participation is of these kinds."""

    name: str
    sampling: tuple[SamplingKind, ...] = ("poisson", "rotation")
    path: CanaryPath | None = None
    sampler: Sampler | None = None
    losing: MakeRelease | None = None
    believed: Tolerance | None = None

    def is_mistake(self, audited: AuditedGroup) -> bool:
        """Whether it changes anything: if all take part the cohort's size is fixed, and no coin is secret; one round
        has one key, and one ask one coin."""
        plan, path = audited.plan, self.path
        if plan.sampling not in self.sampling:
            return False
        if self.sampler is not None or self.sampling == ("rotation",):
            return audited.group.sampling_rate < 1 and (path is None or path.toss is tossed or plan.num_releases > 1)
        return plan.num_rounds > 1 or path is None or path.noise_round(1) == 1


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


def _one_coin(updates: Updates, plan: Plan, assignment: IntArray, *, seed: int) -> Updates:
    """`sampling.tossed`, but that of the first round counts for all."""
    fresh = tossed(updates, plan, assignment, seed=seed)
    return lambda state, clients: fresh(dataclasses.replace(state, round_number=0), clients)


def _coins(seen: Observed, group: Group, _seed: int) -> dict[str, FloatArray]:
    """What a plan's sums say to whoever knows the coins."""
    return {"known coins": server_scores(seen.server_sums, seen.taking_part, noise_multiplier=group.noise_multiplier)}


def _hashes(seen: Observed, _group: Group, _seed: int) -> dict[str, FloatArray]:
    """How many hashes of what a client put into the sums are not that of zero."""
    return {"hashes": (seen.taking_part & seen.inside).sum(axis=0).astype(np.float64)}


# Between the answers of those who train and of the others, in stds of their moments.
_LATER = 3.0


def _moments(seen: Observed, group: Group, seed: int) -> dict[str, FloatArray]:
    """The sums, by coins that are as likely as the moments of the answers make them."""
    jitter = streams.generator(seed, "batches").standard_normal(seen.taking_part.shape)
    moments = jitter + _LATER * seen.taking_part
    odds = group.sampling_rate / (1 - group.sampling_rate) * np.exp(_LATER * moments - _LATER**2 / 2)
    scores = release_scores(
        seen.server_sums,
        noise_multiplier=group.noise_multiplier,
        sampling_rate=odds / (1 + odds),
        asked=seen.asked,
    )
    return {"moments": scores}


CONTROLS: tuple[Control, ...] = (
    Control(
        name="noise shares divided by the cohort, not by its root",
        path=CanaryPath(make_release=functools.partial(integer_release, share_variance=_divided_by_the_cohort)),
    ),
    Control(name="updates clipped at three times the norm", path=CanaryPath(plan=_thrice_the_clip_norm)),
    Control(name="a cohort of fixed size", sampling=("poisson",), sampler=_fixed_size),
    Control(name="no noise", path=CanaryPath(make_release=_without_noise)),
    Control(name="one noise key for all rounds", path=CanaryPath(noise_round=lambda _round: 0)),
    Control(
        name="zeros for a lost sum", sampling=("poisson",), losing=functools.partial(integer_release, lost_sum=_zeros)
    ),
    Control(name="a quorum of n // 2 + 1 with a colluder", believed=_NobodyLies(dropout_rate=ONE_LIAR.dropout_rate)),
    Control(name="coins known to the server", sampling=("rotation",), path=CanaryPath(tells=_coins)),
    Control(name="one coin for a whole run", sampling=("rotation",), path=CanaryPath(toss=_one_coin)),
    Control(
        name="no noise of those who send zero",
        sampling=("rotation",),
        path=CanaryPath(make_release=functools.partial(integer_release, zeros_add_noise=False)),
    ),
    Control(name="the coin in a hash", sampling=("rotation",), path=CanaryPath(tells=_hashes)),
    Control(
        name="answers that come early where nothing was trained",
        sampling=("rotation",),
        path=CanaryPath(tells=_moments),
    ),
)
