"""The plan: one frozen value from which sampler, noise, aggregation and accounting are all derived.

Place: what the planner makes and everything else obeys. Together with `training/rounds.py` it is the method. A `Group`
says how often its clients take part, how their updates are bounded, how much noise their sum carries, and what that
costs them; a `Plan` is the groups and how their sums are released. Nothing here is a secret: secrets (samples, keys,
noise) are never fields.

Two kinds of participation (`sampling`):
  poisson     the server asks whom it samples; every client takes part with its group's probability, each round. The
              server knows who does: `epsilon_server` is another, larger, epsilon.
  rotation    the server asks everybody `asks` times, in a public order (`rotation.py`); who is asked tosses a secret
              coin, and trains, or sends zero, in a way that looks the same. Noise is sized for what the server sees:
              one epsilon holds against both.

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
  person_limit_is_kept             a person who would lose more than person_epsilon raises PrivacyError.
  linked_people_are_bound          people in several clients are counted by group, for one assignment of the clients,
                                   whose digest is a field: counts without it are refused.
  one_epsilon_against_both         of a rotation: the cost of `asks` releases at the coin's rate, which is all that the
                                   server sees; never that of `num_rounds`.
  pooled_noise_is_one              a pooled plan whose groups imply different noise raises PrivacyError.
  a_plan_is_a_value                equal content, equal plan, equal hash; no field can be changed.
"""

import dataclasses
import itertools
import math
import re
from dataclasses import dataclass, field
from typing import Literal, get_args

from gdpfed.config import about, documented
from gdpfed.errors import InputError, PrivacyError, expect
from gdpfed.planning import people, weights
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
from gdpfed.privacy.adversaries import ServerView, asked_view, server_view
from gdpfed.privacy.cache import without_cache
from gdpfed.privacy.calibrate import check_epsilon, num_rounds_for
from gdpfed.privacy.rounding import allowance, delta_up, rounded_up

__all__ = [
    "ADJACENCIES", "RELEASES", "SHORTEST", "Group", "Guarantee", "Plan", "ReleaseKind", "SamplingKind", "guaranteed",
]  # fmt: skip

ReleaseKind = Literal["per-group", "pooled"]
RELEASES: tuple[ReleaseKind, ...] = get_args(ReleaseKind)
SamplingKind = Literal["poisson", "rotation"]
# Between which inputs epsilons hold. In a rotation it is no secret who is enrolled, and when one is asked.
ADJACENCIES: dict[str, str] = {"poisson": ADJACENCY, "rotation": "zero-out-one-client"}

MAX_CLIENTS = 1_000_000_000
# Below it squares lose digits, and with them a norm its exactness: a normalised update so short is not scaled up.
SHORTEST = 1e-100
_LARGEST = 1e9
# A person's clients: more in a list, or unlisted ones, take too long to account for.
_MAX_LINKED, _MAX_UNLISTED = 12, 4
# A claim and its recomputation differ by less than this, or the plan is refused.
_CLAIM_TOLERANCE = 1e-6
_AGAINST_RELEASE = "whoever sees the released models"
_AGAINST_BOTH = f"{_AGAINST_RELEASE}, and the server"


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
    sampling_rate: float = field(metadata=about("Probability that a client takes part in a round in which it may."))
    asked: float = field(default=1.0, metadata=about("Fraction of its clients that may take part in a round."))
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
        size = f"{self.num_clients} {where}"
        expect(1 <= self.num_clients <= MAX_CLIENTS, f"num_clients from 1 to {MAX_CLIENTS}", num_clients=size)
        check_delta(self.delta, field=f"delta {where}")
        limits = {"sampling_rate": 1.0, "asked": 1.0, "keep_fraction": 1.0, "weight": _LARGEST, "scale": _LARGEST}
        for name, largest in limits.items():
            value = getattr(self, name)
            expect(0 < value <= largest, f"{name} above 0 and at most {largest:g}", **{name: f"{value} {where}"})
        for name in ("mean_waste", "max_waste"):
            value = getattr(self, name)
            expect(0 <= value < math.inf, f"a finite {name} >= 0", **{name: f"{value} {where}"})
        check_noise_multiplier(self.noise_multiplier, field=f"noise_multiplier {where}")
        if self.is_private:
            check_epsilon(self.epsilon, field=f"epsilon {where}")
            if not 0 < self.clip_norm <= _LARGEST or self.noise_multiplier == 0:
                raise PrivacyError(
                    f"expected clip_norm above 0 and at most {_LARGEST:g}, and noise, for epsilon="
                    f"{allowance(self.epsilon)}, got clip_norm={self.clip_norm}, "
                    f"noise_multiplier={self.noise_multiplier} {where}"
                )
        elif self.noise_multiplier != 0 or {self.clip_norm, self.epsilon_release, self.epsilon_server} != {math.inf}:
            raise PrivacyError(
                f"expected noise_multiplier 0 and an infinite clip_norm, epsilon_release and epsilon_server where "
                f"epsilon is infinite {where}: a plan without privacy states none"
            )

    @property
    def is_private(self) -> bool:
        """Whether this group promises anything."""
        return self.epsilon != math.inf

    @property
    def expected_cohort(self) -> float:
        """r_m = q_m n_m: the mean number of its clients in a round, a constant, the only divisor there is."""
        return self.asked * self.sampling_rate * self.num_clients

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
    release: ReleaseKind = field(metadata=about("'per-group' sums, or 'pooled': one sum, one noise draw."))
    num_rounds: int = field(metadata=about("Rounds of training."))
    clip_norm: float = field(metadata=about("L2 bound on one client's update, the largest of the groups'."))
    normalised: bool = field(default=False, metadata=about("Whether shorter updates are scaled up to the clip norm."))
    accountant: Accountant = field(metadata=about("'pld' or 'rdp': who computed the epsilons."))
    accountant_version: str = field(metadata=about("By which version of which library."))
    adjacency: str = field(default=ADJACENCY, metadata=about("Between which inputs epsilons hold."))
    sampling: SamplingKind = field(
        default="poisson", metadata=about("'poisson': the server samples. 'rotation': it asks; clients toss coins.")
    )
    asks: int | None = field(default=None, metadata=about("In a rotation: how often each client is asked."))
    min_roster: float | None = field(
        default=None, metadata=about("In a rotation: a sum with less than this fraction of those asked is given up.")
    )
    bands: int | None = field(
        default=None, metadata=about("In a rotation: noise is correlated over so many rounds (`correlated.py`).")
    )
    server_learning_rate: float = field(default=1.0, metadata=about("Factor on the update."))
    adaptive_step: bool = field(
        default=False, metadata=about("Whether the server finds its step from released sums (`adaptive_step.py`).")
    )
    averaging: float = field(default=0.0, metadata=about("How fast the average of the models forgets; 0: no average."))
    max_participations: int | None = field(default=None, metadata=about("Cap on a client's rounds."))
    clients_per_person: int = field(default=1, metadata=about("One person's records may sit in so many clients."))
    person_epsilon: float | None = field(
        default=None, metadata=about("Promised to a person in several clients; absent: nothing.")
    )
    linked: tuple[tuple[int, ...], ...] = field(default=(), metadata=about("Each person's clients, by group."))
    assignment_digest: str | None = field(default=None, metadata=about("SHA-256 of who was in which group."))
    epsilon_person: float | None = field(default=None, metadata=about("Epsilon of a person with several clients."))

    def __post_init__(self) -> None:
        if not self.groups:
            raise InputError("expected a plan with at least one group, got none")
        check_accountant(self.accountant)
        if self.sampling not in ADJACENCIES or self.adjacency != ADJACENCIES[self.sampling]:
            known = " or ".join(f"sampling={sampling!r} with {name!r}" for sampling, name in ADJACENCIES.items())
            raise PrivacyError(
                f"expected {known}, the only adjacencies that the accountant judges, got {self.sampling!r} with "
                f"{self.adjacency!r}"
            )
        if self.release not in RELEASES:
            raise InputError(f"expected release 'per-group' or 'pooled', got {self.release!r}")
        check_num_rounds(self.num_rounds)
        self._check_rotation()
        expect(
            0 < self.clip_norm <= _LARGEST if self.is_private else self.clip_norm == math.inf,
            f"clip_norm above 0 and at most {_LARGEST:g}",
            clip_norm=self.clip_norm,
        )
        expect(
            0 < self.server_learning_rate < math.inf,
            "a finite server_learning_rate > 0",
            server_learning_rate=self.server_learning_rate,
        )
        expect(0 <= self.averaging < 1, "0 <= averaging < 1", averaging=self.averaging)
        if self.adaptive_step and not (self.is_private and self.averaging and self.bands is None):
            raise InputError("expected noise, independent in each round, and averaging for a step that adapts to them")
        if self.normalised and not self.is_private:
            raise InputError("expected a clip norm to scale updates to, got a plan without privacy")
        most = self.max_participations
        expect(most is None or most >= 1, "max_participations >= 1", max_participations=most)
        expect(
            1 <= self.clients_per_person <= _MAX_UNLISTED,
            f"clients_per_person from 1 to {_MAX_UNLISTED}",
            clients_per_person=f"{self.clients_per_person}: list linked clients instead",
        )
        self._check_linked()
        if self.person_epsilon is not None:
            check_epsilon(self.person_epsilon, field="person_epsilon")
            if not (self.is_private and (self.linked or self.clients_per_person > 1)):
                raise InputError("expected clients_per_person or linked clients, and noise, with person_epsilon")
        if len({group.name for group in self.groups}) < len(self.groups):
            raise InputError("expected every group name once")
        if len({group.is_private for group in self.groups}) > 1:
            raise PrivacyError("expected all groups to promise privacy, or none: some epsilons are infinite")
        if self.release == "pooled":
            stds = [group.noise_std for group in self.groups]
            if max(stds) - min(stds) > 1e-9 * max(stds):
                raise PrivacyError(
                    f"a pooled plan has one noise draw, but its groups imply noise stds from {min(stds):.6g} to "
                    f"{max(stds):.6g}: noise_multiplier * clip_norm * scale must be equal"
                )
            if len({group.weight for group in self.groups}) > 1:
                raise InputError("expected one weight in a pooled plan: there is one sum")
            if any(group.keep_fraction < 1 for group in self.groups):
                raise InputError(
                    "expected keep_fraction 1 in a pooled plan: there is no sum of a single group to sparsify"
                )

    def _check_rotation(self) -> None:
        """Who is asked how often is stated once; a plan that says two things is refused."""
        if self.sampling == "poisson":
            stated = {self.asks, self.min_roster, self.bands} != {None}
            if stated or any(group.asked != 1 for group in self.groups):
                raise PrivacyError("expected asks, min_roster, asked and bands in a rotation only, got 'poisson'")
            return
        if not self.is_private:
            raise PrivacyError(f"{self.method} has no privacy: nothing is hidden by a coin; use sampling='poisson'")
        if self.asks is None or not 1 <= self.asks <= self.num_rounds:
            raise PrivacyError(f"expected asks from 1 to {self.num_rounds}, the rounds, got asks={self.asks}")
        if self.min_roster is None or not 0.5 <= self.min_roster <= 1:
            raise PrivacyError(f"expected min_roster from 0.5 to 1, got min_roster={self.min_roster}")
        if self.bands is not None and not 2 <= self.bands <= self.num_rounds // self.asks:
            raise PrivacyError(
                f"expected bands from 2 to {self.num_rounds // self.asks}, the rounds from one ask of a client to the "
                f"next, got bands={self.bands}: noise must not be shared between two of its releases"
            )
        if self.max_participations is not None:
            raise PrivacyError("expected no max_participations in a rotation: asks is the cap")
        if any(group.asked != self.asks / self.num_rounds for group in self.groups):
            raise PrivacyError(f"expected asked={self.asks / self.num_rounds} in every group: asks / num_rounds")

    def _check_linked(self) -> None:
        for counts in self.linked:
            if not isinstance(counts, tuple) or len(counts) != len(self.groups):
                raise InputError(f"expected a count for each of {len(self.groups)} groups in linked, got {counts!r}")
            if any(
                not (type(count) is int and 0 <= count <= group.num_clients)
                for count, group in zip(counts, self.groups, strict=True)
            ):
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

    @property
    def is_rotation(self) -> bool:
        """Whether clients are asked in a public order, and toss secret coins."""
        return self.sampling == "rotation"

    @property
    def num_releases(self) -> int:
        """How many releases a client may be in: every round, or in a rotation those for which it is asked."""
        return self.num_rounds if self.asks is None else self.asks

    @property
    def trainings(self) -> float:
        """How often a client trains in the whole run, on average."""
        return self.participation * self.num_rounds

    @property
    def participation_cap(self) -> int | None:
        """How often a client may take part, as the server counts: in a rotation, be asked. None: in every round."""
        return self.max_participations if self.asks is None else self.asks

    def mechanism(self, group: Group) -> SampledGaussian:
        """What the accountant judges for a group."""
        return SampledGaussian(
            noise_multiplier=group.noise_multiplier, sampling_rate=group.sampling_rate, num_rounds=self.num_releases
        )

    def server_view(self, group: Group) -> ServerView:
        """What the server learns of a client of the group: by its mean, 99th percentile and largest number of
        participations. In a rotation it sees asks, all clients' alike, and what they cost anybody."""
        mechanism = self.mechanism(group)
        if self.is_rotation:
            epsilon = epsilon_of(mechanism, delta=group.delta, accountant=self.accountant)
            return asked_view(epsilon=epsilon, num_asks=self.num_releases)
        return server_view(mechanism, delta=group.delta, max_participations=self.max_participations)

    @property
    def adversary(self) -> str:
        """Against whom the promised epsilons hold."""
        return _AGAINST_BOTH if self.is_rotation else _AGAINST_RELEASE

    @property
    def step_size(self) -> float:
        """How far the model moves if all clients send the same update of norm C, in units of the server learning rate:
        1 for DP-FedAvg."""
        return math.fsum(
            group.weight
            * group.expected_cohort
            * group.scale
            * (group.clip_norm / self.clip_norm if self.is_private else 1.0)
            for group in self.groups
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
            return weights.pooled_signal_to_noise(cohorts, noise)
        return weights.signal_to_noise([group.weight for group in self.groups], cohorts, noise)

    @property
    def noise_at_equal_step(self) -> float:
        """Noise variance of a coordinate of the update, at step 1, in units of (1/qn)^2: C^2 sigma^2 for DP-FedAvg.

        One scale for every method. Sparsified groups count the noise that Top-k really keeps where there is no signal.
        """
        drawn = self.groups[:1] if self.release == "pooled" else self.groups
        variance = math.fsum(
            (group.weight * group.noise_std) ** 2 * noise_energy_kept(group.keep_fraction) for group in drawn
        )
        return variance * (self.expected_cohort / self.step_size) ** 2

    @property
    def paper_noise_magnitude(self) -> float:
        """The paper's Lambda as printed: a plain mean of C^2 sigma_m^2 at uniform rates, else weighted by r^2 and k/d.

        The two are on different scales; `noise_at_equal_step` is the one to compare.
        """
        if not self.is_private:
            return 0.0
        groups = self.groups
        variances = [self.clip_norm**2 * group.noise_multiplier**2 for group in groups]
        if len({group.sampling_rate for group in groups}) == 1 and all(group.keep_fraction == 1 for group in groups):
            return math.fsum(variances) / len(groups)
        squares = [group.expected_cohort**2 for group in groups]
        total = math.fsum(squares)
        shares = (
            square / total * group.keep_fraction * variance
            for square, group, variance in zip(squares, groups, variances, strict=True)
        )
        return math.fsum(shares) / len(groups)

    @property
    def mean_waste(self) -> float:
        """Budget left unused by grouping, averaged over clients."""
        return math.fsum(group.mean_waste * group.num_clients for group in self.groups) / self.num_clients

    @property
    def largest_delta(self) -> float:
        """At which the epsilons of the whole system and of a person in several clients are stated."""
        return max(group.delta for group in self.groups)

    @property
    def system_guarantee(self) -> Guarantee | None:
        """The whole system by parallel composition: clients' data are disjoint. None without privacy."""
        if not self.is_private:
            return None
        return Guarantee(
            epsilon=max(group.epsilon_release for group in self.groups),
            delta=self.largest_delta,
            unit="any one client (clients' data pairwise disjoint)",
            adversary=self.adversary,
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
            delta=self.largest_delta,
            unit="; ".join(units),
            adversary=self.adversary,
        )

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
                    f"delta={delta_up(group.delta)}, more than its budget of {allowance(group.epsilon)}: at most "
                    f"{_rounds_within(self, group)} of {self.num_releases} "
                    f"{'asks' if self.is_rotation else 'rounds'} are allowed with this noise and rate; "
                    f"make the plan again"
                )
            for name in ("epsilon_release", "epsilon_server"):
                self._check_claim(f"{name} of {group.name!r}", getattr(group, name), getattr(recomputed, name))
        self._check_claim("epsilon_person", self.epsilon_person, actual.epsilon_person)
        if self.person_epsilon is not None and not (actual.epsilon_person or 0.0) <= self.person_epsilon:
            raise PrivacyError(
                f"a person in several clients would lose epsilon={rounded_up(actual.epsilon_person or 0.0, 6)} at "
                f"delta={delta_up(self.largest_delta)}, more than person_epsilon={allowance(self.person_epsilon)}: "
                f"raise the noise, or make the plan again"
            )

    def _check_claim(self, what: str, claimed: float | None, actual: float | None) -> None:
        if claimed is None or actual is None:
            agree = claimed is actual
        else:
            # Nothing agrees with NaN or infinity.
            agree = math.isfinite(actual) and abs(claimed - actual) <= _CLAIM_TOLERANCE * actual
        if not agree:
            now = accountant_version()
            versions = f"; it was made with {self.accountant_version}, this is {now}"
            raise PrivacyError(
                f"the plan claims {what} = {claimed}, its mechanism gives {actual}: the file was edited"
                f"{versions if now != self.accountant_version else ''}; make the plan again"
            )


def _rounds_within(plan: Plan, group: Group) -> int:
    """How many rounds the group's budget allows, and means anything for."""
    try:
        return num_rounds_for(
            noise_multiplier=group.noise_multiplier,
            sampling_rate=group.sampling_rate,
            epsilon=group.epsilon,
            delta=group.delta,
            accountant=plan.accountant,
        )
    except PrivacyError:
        return 0


def guaranteed(plan: Plan) -> Plan:
    """The same plan with every epsilon as the accountant computes it; PrivacyError where one would promise nothing."""
    if not plan.is_private:
        return plan
    for group in plan.groups:
        check_promises_something(
            delta=group.delta,
            sampling_rates=[group.sampling_rate],
            num_rounds=plan.num_releases,
            whose=f"a client of {group.name!r}",
        )
    for counts in people.allocations(plan):
        rates = ([group.sampling_rate] * count for group, count in zip(plan.groups, counts, strict=True))
        check_promises_something(
            delta=plan.largest_delta,
            sampling_rates=itertools.chain.from_iterable(rates),
            num_rounds=plan.num_releases,
            whose=f"a person in {sum(counts)} clients",
        )
    groups = tuple(
        dataclasses.replace(
            group,
            epsilon_release=epsilon_of(plan.mechanism(group), delta=group.delta, accountant=plan.accountant),
            epsilon_server=plan.server_view(group).epsilon_max,
        )
        for group in plan.groups
    )
    judged = dataclasses.replace(plan, groups=groups)
    return dataclasses.replace(judged, epsilon_person=people.epsilon_of_a_person(judged))
