"""Canary clients: orthogonal updates through the real sampler, clip, encoding, noise and sum.

Place: the front of the audit. Each canary has a coordinate of its own and sends ten times the clip norm along it, in
every round it is sampled for. Half of the canaries are in the population. The others toss their coins too, which only
the server's view needs, and are left out of every sum. Coordinates do not meet, so thousands of canaries are judged in
one training, and their scores are independent of each other.

In a rotation all canaries are enrolled and asked, and toss their own coins. Those inside send their update, or zero;
the others zero always: what the two worlds of the claim differ in. The server knows who was asked, and not the coins.

Sums are looked at as they are released, before Top-k, which can only hide something: the server sees them so.

Integer sums lose clients as the secure sum does, if ``tolerance`` says so. Then the server's view has sums of its own
(`integer_release`), and who took part is who was sampled: a canary that vanished is missed there, which costs power.

Canaries go in batches, each a training of its own with its own seed, so that a batch's cohort has about ten clients,
or a few where the rate is small.

Beside them are canaries of a mechanism that does exactly what the plan says, with more or less of the planned noise:
what an audit of this size can see at all.

Guarantees (tests of the same name):
  only_canaries_inside_move_the_sum    by the clip norm, in the rounds that they were sampled for.
  canaries_follow_the_seed             the same seed gives the same scores, another one others.
  canaries_of_a_rotation_are_asked     equally often, inside and outside, and send when their coin says so.
  ideal_is_the_planned_mechanism     mean and variance of each round, and the share of rounds.
"""

import bisect
import functools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from gdpfed import streams
from gdpfed.audit.bounds import ScoredCanaries, judge
from gdpfed.audit.integer_release import SeenByTheServer, every_size_complete, integer_release
from gdpfed.audit.privacy_curves import AuditedGroup, BoolArray, FloatArray
from gdpfed.audit.scores import one_coin_scores, release_scores, repeat_scores, server_scores
from gdpfed.errors import InputError
from gdpfed.planning.plan import Group, Plan
from gdpfed.secure.noise_shares import Tolerance
from gdpfed.training.releases.float_sums import float_release
from gdpfed.training.rounds import IntArray, Release, TrainingState, Updates, initial_state
from gdpfed.training.sampling import simulated
from gdpfed.training.sampling import tossed as tossed_by_clients

__all__ = [
    "MECHANISMS", "PATHS", "SEEDS", "TOO_LONG", "CanaryPath", "MakeRelease", "Observed", "Toss", "Views",
    "check_canaries", "first_half", "float_path", "ideal_canaries", "integer_path", "likelihood_ratios", "observe",
    "observe_ideal", "of_size", "send_canaries", "smallest_visible", "tossed",
]  # fmt: skip

# Of the clip norm: that updates are bounded is part of what is audited.
TOO_LONG = 10.0
_CHUNK = 128
_MOST = 10_000_000
# A batch has the seed SEEDS * seed + its number; ideal ones lie beyond.
SEEDS = 2**32
_IDEAL_SEEDS, _IDEAL_BATCH = 2**31, 1000
_FRACTIONS = (0.95, 0.9, 0.85, 0.8, 0.75, 0.7, 0.65, 0.6, 0.55, 0.5, 0.4, 0.3, 0.2)


class MakeRelease(Protocol):
    """Makes what releases sums of so many coordinates, with such losses."""

    def __call__(
        self, plan: Plan, assignment: IntArray, updates: Updates, /, *, seed: int, num_params: int, tolerance: Tolerance
    ) -> Release:
        """For one plan and its clients."""
        ...


# Of those asked, trains whose coin says so: `training.sampling.tossed`, of updates, a plan, its clients and a seed.
Toss = Callable[..., Updates]


@dataclass(frozen=True, kw_only=True, eq=False)
class Observed:
    """One batch: (rounds, canaries). ``sums``, and those that the server is left with, in planned noise stds;
    ``taking_part`` also of those outside. In a rotation that is their coins, and everybody knows who was ``asked``."""

    sums: FloatArray
    server_sums: FloatArray
    taking_part: BoolArray
    inside: BoolArray
    asked: BoolArray | None = None


# What else the server makes of a batch, by name; the seed is the batch's.
Tells = Callable[[Observed, Group, int], dict[str, FloatArray]]


def _float_release(plan: Plan, assignment: IntArray, updates: Updates, /, *, seed: int, **_: object) -> Release:
    return float_release(plan, assignment, updates, seed=seed)


@dataclass(frozen=True, kw_only=True)
class CanaryPath:
    """What canaries are sent through. Only controls change anything: ``plan`` is what the mechanism obeys where that is
    not the plan that is claimed, ``noise_round`` the round whose noise is used, ``toss`` the coins of a rotation, and
    ``tells`` what the server is told besides."""

    make_release: MakeRelease = _float_release
    plan: Callable[[Plan], Plan] = lambda plan: plan
    noise_round: Callable[[int], int] = lambda round_number: round_number
    toss: Toss = tossed_by_clients
    tells: Tells = lambda _seen, _group, _seed: {}


# The same canaries as two adversaries see them: "release" and "server".
Views = dict[str, ScoredCanaries]
Scores = dict[str, dict[str, FloatArray]]

float_path = CanaryPath()
integer_path = CanaryPath(make_release=integer_release)
PATHS = {"float": float_path, "integer": integer_path}
MECHANISMS = tuple(PATHS)


def of_size(plan: Plan, group_index: int, num_clients: int, *, others_stay: bool = False) -> Plan:
    """The plan for so many clients in one group, and next to nobody in others, unless they stay. Its rosters follow;
    epsilons do not depend on it."""
    groups = (
        replace(group, num_clients=num_clients if number == group_index else group.num_clients if others_stay else 1)
        for number, group in enumerate(plan.groups)
    )
    return replace(plan, groups=tuple(groups), linked=(), assignment_digest=None)


def observe(path: CanaryPath, audited: AuditedGroup, *, tolerance: Tolerance | None = None) -> Observed:
    """All canaries in one batch, from the first round to the last."""
    group, num_canaries, seed = audited.group, audited.num_canaries, audited.seed
    plan = of_size(audited.plan, audited.group_index, num_canaries) if audited.plan.is_rotation else audited.plan
    inside = first_half(num_canaries)
    assignment = np.full(num_canaries, audited.group_index, dtype=np.int64)
    state = initial_state(torch.zeros(num_canaries), num_canaries)
    sample = simulated(plan, assignment, seed=seed)
    sums = np.empty((plan.num_rounds, num_canaries))
    server_sums = np.empty_like(sums)
    asked, taking_part = (np.zeros((plan.num_rounds, num_canaries), dtype=np.bool_) for _ in range(2))
    # Noise may have another round's address; coins have their own.
    coins_of = state

    def sent(_: TrainingState, trained: IntArray) -> Iterator[tuple[IntArray, Tensor]]:
        taking_part[coins_of.round_number, trained] = True
        clients = trained[inside[trained]]
        for start in range(0, len(clients), _CHUNK):
            chunk = clients[start : start + _CHUNK]
            rows = torch.zeros((len(chunk), num_canaries), dtype=torch.float64)
            rows[torch.arange(len(chunk)), torch.from_numpy(chunk)] = TOO_LONG * group.clip_norm
            yield chunk, rows

    by_coins = path.toss(sent, plan, assignment, seed=seed)
    release = path.make_release(
        path.plan(plan),
        assignment,
        lambda _, clients: by_coins(coins_of, clients),
        seed=seed,
        num_params=num_canaries,
        tolerance=tolerance or every_size_complete(),
    )
    for round_number in range(plan.num_rounds):
        coins_of = replace(state, round_number=round_number)
        sampled = sample(coins_of)
        state.participations[sampled] += 1
        asked[round_number, sampled] = True
        # The noise has the address of this state's round.
        addressed = replace(state, round_number=path.noise_round(round_number))
        released = release(addressed, sampled if plan.is_rotation else sampled[inside[sampled]])
        sums[round_number] = released.sums[audited.sum_index].numpy()
        known = released.server_sums if isinstance(released, SeenByTheServer) else released.sums
        server_sums[round_number] = known[audited.sum_index].numpy()
    stds, server_stds = sums / group.noise_std, server_sums / group.noise_std
    rounds = {"taking_part": taking_part, "asked": asked} if plan.is_rotation else {"taking_part": asked}
    return Observed(sums=stds, server_sums=server_stds, inside=inside, **rounds)


def check_canaries(wanted: int, *, fewest: int = 200) -> int:
    """So many, if they are enough."""
    if not fewest <= wanted <= _MOST:
        raise InputError(
            f"expected {fewest} canaries or more, and at most {_MOST}, got {wanted}: fewer cannot show anything"
        )
    return wanted


def send_canaries(path: CanaryPath, audited: AuditedGroup, *, tolerance: Tolerance | None = None) -> Views:
    """At least as many canaries as are wanted, in batches, and their scores."""
    wanted = check_canaries(audited.num_canaries)
    # With about ten inside in a cohort, where that is possible.
    size = min(2 * int(np.clip(10 / audited.group.sampling_rate, 100, 2000)), 2 * (wanted // 2))
    batches = (
        replace(audited, num_canaries=size, seed=audited.seed * SEEDS + number) for number in range(-(-wanted // size))
    )
    seen = ((observe(path, batch, tolerance=tolerance), batch.seed) for batch in batches)
    return _scored(seen, audited.group, tells=path.tells)


def likelihood_ratios(seen: Observed, group: Group) -> dict[str, FloatArray]:
    """By view, what no other test of the planned mechanism does better than."""
    noise = group.noise_multiplier
    planned = functools.partial(
        release_scores, noise_multiplier=noise, sampling_rate=group.sampling_rate, asked=seen.asked
    )
    if seen.asked is not None:
        return {"release": planned(seen.sums), "server": planned(seen.server_sums)}
    server = server_scores(seen.server_sums, seen.taking_part, noise_multiplier=noise)
    return {"release": planned(seen.sums), "server": server}


def _scores(seen: Observed, group: Group, *, choose: BoolArray, told: dict[str, FloatArray]) -> Scores:
    """By view and name. The server is ``told`` something by a control only."""
    scores: Scores = {
        view: {"likelihood ratio": ratio, "repeated noise": repeat_scores(seen.sums, choose=choose)}
        for view, ratio in likelihood_ratios(seen, group).items()
    }
    if seen.asked is not None:
        for view, sums in (("release", seen.sums), ("server", seen.server_sums)):
            scores[view]["one coin"] = one_coin_scores(
                sums, noise_multiplier=group.noise_multiplier, sampling_rate=group.sampling_rate, asked=seen.asked
            )
    scores["server"] |= told
    return scores


def _scored(
    batches: Iterable[tuple[Observed, int]], group: Group, *, tells: Tells = lambda _seen, _group, _seed: {}
) -> Views:
    """The scores of all batches, each with its seed; every second canary chooses the test."""
    scores, insides, chooses = [], [], []
    for batch, seed in batches:
        choosing = np.arange(len(batch.inside)) % 2 == 0
        scores.append(_scores(batch, group, choose=choosing, told=tells(batch, group, seed)))
        insides.append(batch.inside)
        chooses.append(choosing)
    inside, choose = np.concatenate(insides), np.concatenate(chooses)
    return {
        view: ScoredCanaries(
            scores={name: np.concatenate([batch[view][name] for batch in scores]) for name in names},
            inside=inside,
            choose=choose,
        )
        for view, names in scores[0].items()
    }


def ideal_canaries(audited: AuditedGroup, *, fraction: float = 1.0) -> Views:
    """As `send_canaries`, of the mechanism that the accountant judges, with ``fraction`` of the planned noise."""
    batches = (
        replace(
            audited,
            num_canaries=min(_IDEAL_BATCH, audited.num_canaries - start),
            seed=audited.seed * SEEDS + _IDEAL_SEEDS + number,
        )
        for number, start in enumerate(range(0, audited.num_canaries, _IDEAL_BATCH))
    )
    seen = (
        (observe_ideal(batch, inside=first_half(batch.num_canaries), fraction=fraction), batch.seed)
        for batch in batches
    )
    return _scored(seen, audited.group)


def observe_ideal(audited: AuditedGroup, *, inside: BoolArray, fraction: float = 1.0) -> Observed:
    """Gaussian draws by numpy: nobody else, and no sampler, clip, encoding or sum. Of a rotation only the rounds in
    which a canary is asked."""
    taking_part = tossed(audited)
    noise = fraction * streams.generator(audited.seed, "noise").standard_normal(taking_part.shape)
    sums = noise + (taking_part & inside) / audited.group.noise_multiplier
    asked = np.ones_like(taking_part) if audited.plan.is_rotation else None
    return Observed(sums=sums, server_sums=sums, taking_part=taking_part, inside=inside, asked=asked)


def tossed(audited: AuditedGroup) -> BoolArray:
    """(rounds, canaries): whose coin says so takes part, as often as the plan allows. Of a rotation its asks alone."""
    shape, most = (audited.plan.num_releases, audited.num_canaries), audited.plan.max_participations
    taking_part = streams.generator(audited.seed, "sample").random(shape) < audited.group.sampling_rate
    return taking_part if most is None else taking_part & (np.cumsum(taking_part, axis=0) <= most)


def first_half(num_canaries: int) -> BoolArray:
    """Who is inside."""
    return np.arange(num_canaries) < num_canaries // 2


def smallest_visible(audited: AuditedGroup, *, alpha: float) -> dict[str, float | None]:
    """For each view the largest fraction of the noise that was flagged, in one simulation of each; None if none was."""
    delta, claims = audited.group.delta, audited.claims()

    @functools.cache
    def flagged(step: int) -> dict[str, bool]:
        canaries = ideal_canaries(replace(audited, seed=audited.seed + 1), fraction=_FRACTIONS[step])
        return {
            view: judge(
                canaries[view], family, claim=np.inf, delta=delta, alpha=alpha, measure_noise=False
            ).curve_contradicted
            for view, (family, _) in claims.items()
        }

    def largest(view: str) -> float | None:
        last = len(_FRACTIONS) - 1
        if not flagged(last)[view]:
            return None
        return _FRACTIONS[bisect.bisect_left(range(last), True, key=lambda step: flagged(step)[view])]

    return {view: largest(view) for view in claims}
