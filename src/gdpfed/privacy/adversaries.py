"""Who learns how much: the server's epsilon, the whole system's, and a person's who sits in several clients.

Place: beside the accountant; a plan prints all of these next to the release epsilon.

The release epsilon (`accountant.epsilon_of`) holds against whoever sees only the released models. It is small because
the sample is secret. The server draws the sample, so against the server a client that took part k times has made k
Gaussian releases without any amplification: `server_epsilon`.

A person with records in several clients loses more than one client does. Within one noisy sum the clients' shifts add
up under one noise draw (a mixture of Gaussians, sensitivities 0, 1, 2, ...); across sums the losses compose. Neither
is what adding epsilons gives, and composing same-sum clients as if their noise were independent would be wrong:
`person_epsilon` does both right.

In a rotation a person's clients may be asked in the same rounds or in others, which nobody knows when the plan is made.
`chained_epsilon` holds for all of them: take the clients away one after the other. If the first step costs (a, delta_1)
and the second (b, delta_2), both together cost (a + b, delta_1 + e^a delta_2).

Guarantees (tests of the same name):
  server_epsilon_is_exact         equals the analytic Gaussian epsilon of k releases.
  cap_bounds_every_client         no participation count above the cap is possible, and its epsilon is the reported one.
  one_client_per_person_is_the_release_epsilon
  same_sum_is_not_composition     at rate 1 two clients of one sum cost what half the noise costs.
  chains_hold_for_every_alignment   `chained_epsilon` is above the epsilon of clients in the same sums, and in others.
  person_is_at_most_group_privacy   never above adding epsilons at (1 + e^eps) delta.
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gdpfed.errors import PrivacyError, expect
from gdpfed.privacy.accountant import (
    Accountant,
    SampledGaussian,
    check_delta,
    check_noise_multiplier,
    delta_after_rounding,
    epsilon_of,
    gaussian_epsilon,
    grid_interval,
)
from gdpfed.privacy.calibrate import most_allowed
from gdpfed.privacy.rounding import delta_up

__all__ = [
    "ServerView",
    "asked_view",
    "chained_epsilon",
    "max_participations_for",
    "person_epsilon",
    "server_epsilon",
    "server_view",
]

_MAX_PARTICIPATIONS = 1_000_000
_PERSON_RELATIVE_ERROR = 5e-4

# One person's clients in one noisy sum: for each its sampling rate and its noise multiplier in that sum.
Clients = Sequence[tuple[float, float]]


def server_epsilon(*, noise_multiplier: float, num_participations: int, delta: float) -> float:
    """Epsilon against the server, which knows the samples, of a client that took part ``num_participations`` times."""
    check_delta(delta)
    check_noise_multiplier(noise_multiplier)
    expect(num_participations >= 0, "num_participations >= 0", num_participations=num_participations)
    return gaussian_epsilon(noise_multiplier=noise_multiplier, num_releases=num_participations, delta=delta)


def max_participations_for(*, noise_multiplier: float, epsilon: float, delta: float) -> int:
    """How often a client may take part until its loss against the server would exceed ``epsilon``."""

    def allowed(count: int) -> bool:
        return server_epsilon(noise_multiplier=noise_multiplier, num_participations=count, delta=delta) <= epsilon

    return most_allowed(allowed, limit=_MAX_PARTICIPATIONS)


@dataclass(frozen=True, kw_only=True)
class ServerView:
    """Participations of a client and what they cost it against the server: on average (rounded up), for 99 in 100
    clients, at most."""

    mean_participations: int
    p99_participations: int
    max_participations: int
    epsilon_mean: float
    epsilon_p99: float
    epsilon_max: float


def asked_view(*, epsilon: float, num_asks: int) -> ServerView:
    """What the server learns where it asks everybody so often, and does not see the coins: as much as anybody does."""
    return ServerView(
        mean_participations=num_asks,
        p99_participations=num_asks,
        max_participations=num_asks,
        epsilon_mean=epsilon,
        epsilon_p99=epsilon,
        epsilon_max=epsilon,
    )


def server_view(mechanism: SampledGaussian, *, delta: float, max_participations: int | None = None) -> ServerView:
    """What the server learns of a client; ``max_participations`` is the cap that the sampler enforces, if there is one.

    With a cap the release epsilon still holds: given all that was released before, a capped client is sampled with a
    probability of at most its rate, and the loss grows with the rate.
    """
    num_rounds, sampling_rate = mechanism.num_rounds, mechanism.sampling_rate
    most = num_rounds if max_participations is None else min(max_participations, num_rounds)
    expect(most >= 1, "max_participations >= 1", max_participations=max_participations)
    from scipy import special

    within = special.bdtr(np.arange(num_rounds + 1), num_rounds, sampling_rate)
    mean = min(math.ceil(num_rounds * sampling_rate - 1e-9), most)
    p99 = min(int(np.argmax(within >= 0.99)), most)
    epsilon = functools.partial(server_epsilon, noise_multiplier=mechanism.noise_multiplier, delta=delta)
    return ServerView(
        mean_participations=mean,
        p99_participations=p99,
        max_participations=most,
        epsilon_mean=epsilon(num_participations=mean),
        epsilon_p99=epsilon(num_participations=p99),
        epsilon_max=epsilon(num_participations=most),
    )


def person_epsilon(*, sums: Sequence[Clients], num_rounds: int, delta: float) -> float:
    """Epsilon of removing one person who sits in all the listed clients of each noisy sum, by PLD, against whoever
    sees only the released models."""
    from dp_accounting.pld import privacy_loss_distribution as distributions

    from gdpfed.privacy import pld

    check_delta(delta)
    occupied = [clients for clients in sums if clients]
    if not occupied:
        return 0.0
    if any(noise == 0 for clients in occupied for _, noise in clients):
        return math.inf
    interval = grid_interval(1.0, num_rounds * len(occupied), _PERSON_RELATIVE_ERROR)
    total = distributions.identity(interval)
    for clients in occupied:
        shifts, chances = _shifts(clients)
        total = total.compose(
            pld.composed_mixture(
                sensitivities=shifts, probabilities=chances, num_rounds=num_rounds, grid_interval=interval
            )
        )
    return _resolved(total.get_epsilon_for_delta(delta_after_rounding(delta, num_rounds * len(occupied))), delta)


def chained_epsilon(mechanisms: Sequence[SampledGaussian], *, delta: float, accountant: Accountant) -> float:
    """Epsilon of removing a person who sits in clients with these mechanisms, whatever sums they share."""
    check_delta(delta)
    spent = 0.0
    # The cheapest first: the deltas of later steps weigh more, by what was spent before.
    for mechanism in sorted(mechanisms, key=lambda each: epsilon_of(each, delta=delta, accountant=accountant)):
        allowed = delta / len(mechanisms) * math.exp(-spent)
        spent += epsilon_of(mechanism, delta=allowed, accountant=accountant) if allowed else math.inf
    return _resolved(spent, delta)


def _resolved(spent: float, delta: float) -> float:
    if not math.isfinite(spent):
        raise PrivacyError(
            f"the person-level epsilon cannot be resolved at delta={delta_up(delta)}: "
            f"raise delta, or declare fewer clients per person"
        )
    return float(spent)


def _shifts(clients: Clients) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """All sizes by which the person's clients may shift the sum in one round, in noise stds; their probabilities."""
    chances = {0.0: 1.0}
    for rate, noise in clients:
        following: dict[float, float] = {}
        for size, chance in chances.items():
            for taking, share in ((size, 1 - rate), (size + 1 / noise, rate)):
                if share > 0:
                    following[taking] = following.get(taking, 0.0) + chance * share
        chances = following
    present = dict(sorted(chances.items()))
    norm = math.fsum(present.values())
    return tuple(present), tuple(chance / norm for chance in present.values())
