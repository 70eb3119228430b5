"""The plan: one frozen value from which sampler, noise, aggregation and accounting are all derived.

Place: what the planner makes and everything else obeys. Together with `training/rounds.py` it is the method. A `Group`
says how often its clients take part, how their updates are bounded, how much noise their sum carries, and what that
costs them; a `Plan` is the groups and how their sums are released. Nothing here is a secret: secrets (samples, keys,
noise) are never fields.

Two shapes of release:
  per-group   each group's sum is released with its own noise, of std noise_multiplier * clip_norm;
  pooled      all groups share one sum and one noise draw. A client's clipped update is multiplied by `scale`;
              noise_multiplier * clip_norm * scale, the noise std, is then the same for every group, and each client
              still has its group's noise multiplier.

Guarantees (tests of the same name):
  verify_recomputes_everything     from the mechanism alone, without the cache; a claim that is not what comes out is
                                   refused.
  overspending_is_refused          a group whose epsilon exceeds its budget raises PrivacyError.
  empty_promises_are_refused       so does a group, or a person, whose delta is not below half the probability of taking
                                   part at all: any epsilon would be kept.
  linked_people_are_bound          people in several clients are counted by group, for one assignment of the clients,
                                   whose digest is a field: counts without it are refused.
  pooled_noise_is_one              a pooled plan whose groups imply different noise raises PrivacyError.
  a_plan_is_a_value                equal content, equal plan, equal hash; no field can be changed.
"""

import dataclasses
import itertools
import math
import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Literal, get_args

from gdpfed.config import about, documented
from gdpfed.errors import InputError, PrivacyError
from gdpfed.planning import weights as weighting
from gdpfed.planning.sparsity import noise_energy_kept
from gdpfed.privacy.accountant import (
    ADJACENCY,
    Accountant,
    SampledGaussian,
    accountant_version,
    check_accountant,
    check_delta,
    check_noise_multiplier,
    check_num_rounds,
    check_promises_something,
    epsilon_of,
)
from gdpfed.privacy.adversaries import LinkedSum, ServerView, person_epsilon, server_view
from gdpfed.privacy.cache import without_cache
from gdpfed.privacy.calibrate import check_epsilon, num_rounds_for
from gdpfed.privacy.rounding import delta_up, rounded_up

__all__ = ["RELEASES", "Group", "Guarantee", "Plan", "Release", "guaranteed"]

Release = Literal["per-group", "pooled"]
RELEASES: tuple[Release, ...] = get_args(Release)

MAX_CLIENTS = 1_000_000_000
_LARGEST = 1e9
# A person's clients: more in a list, or unlisted ones, take too long to account for.
_MAX_LINKED, _MAX_UNLISTED = 12, 4
# A claim and its recomputation differ by less than this, or the plan is refused.
_CLAIM_TOLERANCE = 1e-6
# More ways to spread a person's clients over the groups than this are not all evaluated: links must be listed.
_MAX_ALLOCATIONS = 60


@documented
@dataclass(frozen=True, kw_only=True)
class Group:
    """A group's part of a plan. ``epsilon`` is the promise, ``epsilon_release`` and ``epsilon_server`` what the
    mechanism costs.

    ``epsilon_server`` is that of a client which takes part as often as it can. In a plan without privacy (plain FedAvg)
    all three are infinite, the clip norm too, and the noise multiplier is 0.
    """

    name: str = field(metadata=about("What tables call it; each name once."))
    num_clients: int = field(metadata=about("Clients of the group."))
    epsilon: float = field(metadata=about("Promised to each, against whoever sees the models; infinite: nothing."))
    delta: float = field(metadata=about("The failure probability that goes with every epsilon of the group."))
    sampling_rate: float = field(metadata=about("Probability that a client takes part in a round."))
    clip_norm: float = field(metadata=about("L2 bound on one client's update."))
    scale: float = field(default=1.0, metadata=about("Factor on a clipped update in a pooled sum."))
    noise_multiplier: float = field(metadata=about("Noise std on the sum, divided by clip norm and scale."))
    weight: float = field(metadata=about("Factor on the group's noisy sum in the update."))
    keep_fraction: float = field(default=1.0, metadata=about("Fraction of the noisy sum that Top-k keeps."))
    projected: bool = field(default=False, metadata=about("Whether its sum is projected on the lax groups'."))
    epsilon_release: float = field(metadata=about("Cost against whoever sees the released models."))
    epsilon_server: float = field(metadata=about("Cost against the server, for who takes part most often."))
    mean_waste: float = field(default=0.0, metadata=about("Budget left unused, on average over its clients."))
    max_waste: float = field(default=0.0, metadata=about("The most that one of its clients leaves unused."))

    def __post_init__(self) -> None:
        where = f"in group {self.name!r}"
        if not 1 <= self.num_clients <= MAX_CLIENTS:
            raise InputError(
                f"expected num_clients from 1 to {MAX_CLIENTS}, got num_clients={self.num_clients} {where}"
            )
        check_delta(self.delta, field=f"delta {where}")
        if not 0 < self.sampling_rate <= 1:
            raise InputError(f"expected 0 < sampling_rate <= 1, got sampling_rate={self.sampling_rate} {where}")
        if not 0 < self.keep_fraction <= 1:
            raise InputError(f"expected 0 < keep_fraction <= 1, got keep_fraction={self.keep_fraction} {where}")
        for name in ("weight", "scale"):
            if not 0 < getattr(self, name) <= _LARGEST:
                raise InputError(
                    f"expected {name} above 0 and at most {_LARGEST:g}, got {name}={getattr(self, name)} {where}"
                )
        for name in ("mean_waste", "max_waste"):
            if not 0 <= getattr(self, name) < math.inf:
                raise InputError(f"expected a finite {name} >= 0, got {name}={getattr(self, name)} {where}")
        check_noise_multiplier(self.noise_multiplier, field=f"noise_multiplier {where}")
        if not self.is_private:
            self._check_claims_nothing(where)
        else:
            check_epsilon(self.epsilon, field=f"epsilon {where}")
            if not 0 < self.clip_norm <= _LARGEST or self.noise_multiplier == 0:
                raise PrivacyError(
                    f"expected clip_norm above 0 and at most {_LARGEST:g}, and noise, for epsilon={self.epsilon:g}, "
                    f"got "
                    f"clip_norm={self.clip_norm}, noise_multiplier={self.noise_multiplier} {where}"
                )

    def _check_claims_nothing(self, where: str) -> None:
        """Without privacy there is no noise and no clip, and every epsilon is infinite."""
        infinite = (self.clip_norm, self.epsilon_release, self.epsilon_server)
        if self.noise_multiplier != 0 or any(value != math.inf for value in infinite):
            raise PrivacyError(
                f"expected noise_multiplier 0 and an infinite clip_norm, epsilon_release and epsilon_server where "
                f"epsilon "
                f"is infinite {where}: a plan without privacy states none"
            )

    @property
    def is_private(self) -> bool:
        """Whether this group promises anything."""
        return self.epsilon != math.inf

    @property
    def expected_cohort(self) -> float:
        """r_m = q_m n_m: the mean number of its clients in a round, a constant, the only divisor there is."""
        return self.sampling_rate * self.num_clients

    @property
    def noise_std(self) -> float:
        """The std of the noise on each coordinate of the sum that this group's updates join."""
        return 0.0 if self.noise_multiplier == 0 else self.noise_multiplier * self.clip_norm * self.scale


@dataclass(frozen=True, kw_only=True)
class Guarantee:
    """An epsilon at a delta, for the presence of ``unit``, against ``adversary``."""

    epsilon: float
    delta: float
    unit: str
    adversary: str


@documented
@dataclass(frozen=True, kw_only=True)
class Plan:
    """Everything that is fixed before training starts, and public.

    ``linked`` has for each person in several clients how many of them are in each group, without names: who is linked
    to whom is nobody's business. The counts hold only while every client is in the group that it was counted in:
    ``assignment_digest`` is of that (`planning.people.assignment_digest`), and is compared wherever budgets meet the
    plan.
    """

    method: str = field(metadata=about("The method that made it."))
    groups: tuple[Group, ...] = field(metadata=about("The groups, the strictest first."))
    grouping: str = field(metadata=about("How they were found."))
    release: Release = field(metadata=about("'per-group' sums, or 'pooled': one sum, one noise draw."))
    num_rounds: int = field(metadata=about("Rounds of training."))
    clip_norm: float = field(metadata=about("L2 bound on one client's update, the largest of the groups'."))
    accountant: Accountant = field(metadata=about("'pld' or 'rdp': who computed the epsilons."))
    accountant_version: str = field(metadata=about("By which version of which library."))
    adjacency: str = field(default=ADJACENCY, metadata=about("Between which inputs epsilons hold."))
    sampling: str = field(default="poisson", metadata=about("Only 'poisson' is accounted for."))
    server_learning_rate: float = field(default=1.0, metadata=about("Factor on the update."))
    averaging: float = field(default=0.0, metadata=about("How fast the average of the models forgets; 0: no average."))
    max_participations: int | None = field(default=None, metadata=about("Cap on a client's rounds."))
    clients_per_person: int = field(default=1, metadata=about("One person's records may sit in so many clients."))
    linked: tuple[tuple[int, ...], ...] = field(default=(), metadata=about("Each person's clients, by group."))
    assignment_digest: str | None = field(default=None, metadata=about("SHA-256 of who was in which group."))
    epsilon_person: float | None = field(default=None, metadata=about("Epsilon of a person with several clients."))

    def __post_init__(self) -> None:
        if not self.groups:
            raise InputError("expected a plan with at least one group, got none")
        check_accountant(self.accountant)
        if self.adjacency != ADJACENCY or self.sampling != "poisson":
            raise PrivacyError(
                f"expected adjacency={ADJACENCY!r} and sampling='poisson', the only ones that the accountant judges, "
                f"got {self.adjacency!r} and {self.sampling!r}"
            )
        if self.release not in RELEASES:
            raise InputError(f"expected release 'per-group' or 'pooled', got {self.release!r}")
        check_num_rounds(self.num_rounds)
        if not (self.clip_norm == math.inf if not self.is_private else 0 < self.clip_norm <= _LARGEST):
            raise InputError(f"expected clip_norm above 0 and at most {_LARGEST:g}, got clip_norm={self.clip_norm}")
        if not (math.isfinite(self.server_learning_rate) and self.server_learning_rate > 0):
            raise InputError(
                f"expected a finite server_learning_rate > 0, got server_learning_rate={self.server_learning_rate}"
            )
        if not 0 <= self.averaging < 1:
            raise InputError(f"expected 0 <= averaging < 1, got averaging={self.averaging}")
        if self.max_participations is not None and self.max_participations < 1:
            raise InputError(f"expected max_participations >= 1, got max_participations={self.max_participations}")
        if not 1 <= self.clients_per_person <= _MAX_UNLISTED:
            raise InputError(
                f"expected clients_per_person from 1 to {_MAX_UNLISTED}, got "
                f"clients_per_person={self.clients_per_person}: "
                f"list linked clients instead"
            )
        self._check_linked()
        if len({group.name for group in self.groups}) < len(self.groups):
            raise InputError("expected every group name once")
        if len({group.is_private for group in self.groups}) > 1:
            raise PrivacyError("expected all groups to promise privacy, or none: some epsilons are infinite")
        if self.release == "pooled":
            stds = [group.noise_std for group in self.groups]
            if max(stds) - min(stds) > 1e-9 * max(stds):
                raise PrivacyError(
                    f"a pooled plan has one noise draw, but its groups imply noise stds from {min(stds):.6g} to "
                    f"{max(stds):.6g}: "
                    f"noise_multiplier * clip_norm * scale must be equal"
                )
            if len({group.weight for group in self.groups}) > 1:
                raise InputError("expected one weight in a pooled plan: there is one sum")
            if any(group.keep_fraction < 1 for group in self.groups):
                raise InputError(
                    "expected keep_fraction 1 in a pooled plan: there is no sum of a single group to sparsify"
                )

    def _check_linked(self) -> None:
        for counts in self.linked:
            if len(counts) != len(self.groups):
                raise InputError(f"expected a count for each of {len(self.groups)} groups in linked, got {len(counts)}")
            if any(not 0 <= count <= group.num_clients for count, group in zip(counts, self.groups, strict=True)):
                raise InputError(f"expected counts from 0 to the size of the group in linked, got {list(counts)}")
            if not 1 <= sum(counts) <= _MAX_LINKED:
                raise InputError(f"expected from 1 to {_MAX_LINKED} linked clients for one person, got {sum(counts)}")
        if self.linked and self.assignment_digest is None:
            raise PrivacyError(
                "the plan counts linked clients by group, but does not say which client was in which group "
                "(assignment_digest), as plans of older versions: make the plan again"
            )
        if self.assignment_digest is not None and not (
            self.linked and re.fullmatch("[0-9a-f]{64}", self.assignment_digest)
        ):
            raise InputError(
                f"expected assignment_digest to be a SHA-256 in hexadecimal, beside linked clients, got "
                f"{self.assignment_digest!r}: make the plan again"
            )

    @property
    def is_private(self) -> bool:
        """Whether the plan promises anything."""
        return self.groups[0].is_private

    @property
    def num_clients(self) -> int:
        """All clients of all groups."""
        return sum(group.num_clients for group in self.groups)

    @property
    def expected_cohort(self) -> float:
        """The mean number of clients in a round."""
        return math.fsum(group.expected_cohort for group in self.groups)

    @property
    def participation(self) -> float:
        """The mean sampling rate over clients, the paper's q."""
        return self.expected_cohort / self.num_clients

    def mechanism(self, group: Group) -> SampledGaussian:
        """What the accountant judges for a group."""
        return SampledGaussian(
            noise_multiplier=group.noise_multiplier, sampling_rate=group.sampling_rate, num_rounds=self.num_rounds
        )

    def server_view(self, group: Group) -> ServerView:
        """What the server learns of a client of the group: by its mean, 99th percentile and largest number of
        participations."""
        return server_view(
            noise_multiplier=group.noise_multiplier,
            sampling_rate=group.sampling_rate,
            num_rounds=self.num_rounds,
            delta=group.delta,
            max_participations=self.max_participations,
        )

    @property
    def step_size(self) -> float:
        """How far the model moves, in units of the server learning rate, when all clients send the same update of norm
        C."""
        return math.fsum(
            group.weight * group.expected_cohort * group.scale * self._relative_clip(group) for group in self.groups
        )

    @property
    def signal_to_noise(self) -> float:
        """Updates of norm C that agree, over the noise std of a coordinate, in one round; infinite without noise."""
        if not self.is_private:
            return math.inf
        cohorts = [group.expected_cohort for group in self.groups]
        noise = [group.noise_multiplier for group in self.groups]
        if self.release == "pooled":
            # Clipping at c_m and scaling both enter as noise_std / (clip_norm * scale), which is the noise multiplier.
            return weighting.pooled_signal_to_noise(cohorts, noise)
        return weighting.signal_to_noise([group.weight for group in self.groups], cohorts, noise)

    @property
    def noise_at_equal_step(self) -> float:
        """Noise variance of a coordinate of the update, at step 1, in units of (1/qn)^2: C^2 sigma^2 for DP-FedAvg.

        One scale for every method. Sparsified groups count the noise that Top-k really keeps where there is no signal.
        """
        if not self.is_private:
            return 0.0
        if self.release == "pooled":
            variance = (self.groups[0].weight * self.groups[0].noise_std) ** 2
        else:
            variance = math.fsum(
                (group.weight * group.noise_std) ** 2 * noise_energy_kept(group.keep_fraction) for group in self.groups
            )
        return variance * (self.expected_cohort / self.step_size) ** 2

    @property
    def paper_noise_magnitude(self) -> float:
        """The paper's Lambda, as it prints it: a plain mean of C^2 sigma_m^2 at uniform rates, else weighted by r^2
        and k/d.

        The two are on different scales; `noise_at_equal_step` is the one to compare.
        """
        if not self.is_private:
            return 0.0
        variances = [self.clip_norm**2 * group.noise_multiplier**2 for group in self.groups]
        if len({group.sampling_rate for group in self.groups}) == 1 and all(g.keep_fraction == 1 for g in self.groups):
            return math.fsum(variances) / len(variances)
        squares = [group.expected_cohort**2 for group in self.groups]
        total = math.fsum(squares)
        shares = (
            square / total * group.keep_fraction * variance
            for square, group, variance in zip(squares, self.groups, variances, strict=True)
        )
        return math.fsum(shares) / len(variances)

    @property
    def mean_waste(self) -> float:
        """Budget left unused by grouping, averaged over clients."""
        return math.fsum(group.mean_waste * group.num_clients for group in self.groups) / self.num_clients

    def _relative_clip(self, group: Group) -> float:
        return 1.0 if math.isinf(group.clip_norm) else group.clip_norm / self.clip_norm

    @property
    def system_guarantee(self) -> Guarantee | None:
        """The whole system by parallel composition: clients' data are disjoint. None without privacy."""
        if not self.is_private:
            return None
        return Guarantee(
            epsilon=max(group.epsilon_release for group in self.groups),
            delta=max(group.delta for group in self.groups),
            unit="any one client (clients' data pairwise disjoint)",
            adversary="whoever sees the released models",
        )

    @property
    def person_guarantee(self) -> Guarantee | None:
        """For a person whose records sit in several clients, if such an overlap was declared."""
        if self.epsilon_person is None:
            return None
        units = []
        if self.clients_per_person > 1:
            units.append(f"any one person in up to {self.clients_per_person} clients")
        if self.linked:
            most = max(sum(counts) for counts in self.linked)
            units.append(f"any one of the listed people, in up to {most} clients, or anyone else in one")
        return Guarantee(
            epsilon=self.epsilon_person,
            delta=self._person_delta,
            unit="; ".join(units),
            adversary="whoever sees the released models",
        )

    def allocations(self) -> tuple[tuple[int, ...], ...]:
        """All ways in which one person's clients may be spread over the groups, under the declared overlap."""
        spread: list[tuple[int, ...]] = list(dict.fromkeys(self.linked))
        ways = len(spread)
        if self.clients_per_person > 1:
            ways += math.comb(len(self.groups) + self.clients_per_person - 1, self.clients_per_person)
        if ways > _MAX_ALLOCATIONS:
            raise InputError(
                f"{ways} ways to spread one person's clients over {len(self.groups)} groups are more than "
                f"{_MAX_ALLOCATIONS}: use fewer groups, a smaller clients_per_person, or list fewer linked clients"
            )
        if self.clients_per_person > 1:
            places = itertools.combinations_with_replacement(range(len(self.groups)), self.clients_per_person)
            for chosen in places:
                counts = Counter(chosen)
                spread.append(tuple(min(counts[place], group.num_clients) for place, group in enumerate(self.groups)))
        return tuple(dict.fromkeys(spread))

    def verify(self) -> None:
        """Recomputes every epsilon from the mechanism, without the cache; raises PrivacyError if a promise or a claim
        is false."""
        if not self.is_private:
            return
        with without_cache():
            actual = guaranteed(self)
        for group, recomputed in zip(self.groups, actual.groups, strict=True):
            if recomputed.epsilon_release > group.epsilon:
                raise PrivacyError(
                    f"{group.name!r} would spend epsilon={rounded_up(recomputed.epsilon_release, 6)} at "
                    f"delta={delta_up(group.delta)}, more than its budget of {group.epsilon:g}: at most "
                    f"{self._rounds_within(group)} of {self.num_rounds} rounds are allowed with this noise and rate; "
                    f"make the plan again"
                )
            self._check_claim(f"epsilon_release of {group.name!r}", group.epsilon_release, recomputed.epsilon_release)
            self._check_claim(f"epsilon_server of {group.name!r}", group.epsilon_server, recomputed.epsilon_server)
        self._check_claim("epsilon_person", self.epsilon_person, actual.epsilon_person)

    def _rounds_within(self, group: Group) -> int:
        """How many rounds the group's budget allows, and means anything for."""
        try:
            return num_rounds_for(
                noise_multiplier=group.noise_multiplier,
                sampling_rate=group.sampling_rate,
                epsilon=group.epsilon,
                delta=group.delta,
                accountant=self.accountant,
            )
        except PrivacyError:
            return 0

    def check_promises_something(self) -> None:
        """Raises PrivacyError where a group's delta, or a linked person's, would allow any epsilon."""
        for group in self.groups:
            check_promises_something(
                delta=group.delta,
                sampling_rates=[group.sampling_rate],
                num_rounds=self.num_rounds,
                whose=f"a client of {group.name!r}",
            )
        if self.clients_per_person == 1 and not self.linked:
            return
        for counts in self.allocations():
            check_promises_something(
                delta=self._person_delta,
                sampling_rates=itertools.chain.from_iterable(
                    [group.sampling_rate] * count for group, count in zip(self.groups, counts, strict=True)
                ),
                num_rounds=self.num_rounds,
                whose=f"a person in {sum(counts)} clients",
            )

    @property
    def _person_delta(self) -> float:
        """At which the person-level epsilon is stated."""
        return max(group.delta for group in self.groups)

    def _check_claim(self, what: str, claimed: float | None, actual: float | None) -> None:
        if claimed is None and actual is None:
            return
        if claimed is None or actual is None or not _agree(claimed, actual):
            now = accountant_version()
            made_by = (
                f"; it was made with {self.accountant_version}, this is {now}" if now != self.accountant_version else ""
            )
            raise PrivacyError(
                f"the plan claims {what} = {claimed}, its mechanism gives {actual}: the file was edited{made_by}; make "
                f"the plan again"
            )


def _agree(claimed: float, actual: float) -> bool:
    """Within the tolerance, both finite; nothing agrees with NaN."""
    return math.isfinite(actual) and abs(claimed - actual) <= _CLAIM_TOLERANCE * actual


def guaranteed(plan: Plan) -> Plan:
    """The same plan with every epsilon as the accountant computes it; PrivacyError where one would promise nothing."""
    if not plan.is_private:
        return plan
    plan.check_promises_something()
    groups = tuple(
        dataclasses.replace(
            group,
            epsilon_release=epsilon_of(plan.mechanism(group), delta=group.delta, accountant=plan.accountant),
            epsilon_server=plan.server_view(group).epsilon_max,
        )
        for group in plan.groups
    )
    judged = dataclasses.replace(plan, groups=groups, epsilon_person=None)
    if plan.clients_per_person == 1 and not plan.linked:
        return judged
    return dataclasses.replace(judged, epsilon_person=_person(judged))


def _person(plan: Plan) -> float:
    worst = max(
        person_epsilon(sums=_linked_sums(plan, counts), num_rounds=plan.num_rounds, delta=plan._person_delta)
        for counts in plan.allocations()
    )
    # Whoever is not linked is a person in one client.
    return max([worst, *(group.epsilon_release for group in plan.groups)])


def _linked_sums(plan: Plan, counts: tuple[int, ...]) -> list[LinkedSum]:
    separate = [
        LinkedSum(sampling_rates=(group.sampling_rate,) * count, noise_multipliers=(group.noise_multiplier,) * count)
        for group, count in zip(plan.groups, counts, strict=True)
    ]
    if plan.release == "per-group":
        return separate
    return [
        LinkedSum(
            sampling_rates=tuple(itertools.chain.from_iterable(linked.sampling_rates for linked in separate)),
            noise_multipliers=tuple(itertools.chain.from_iterable(linked.noise_multipliers for linked in separate)),
        )
    ]
