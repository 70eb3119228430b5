"""What a client has spent: the composition of all its events, over all runs.

Place: between the accountant and the ledger. A history is the set of mechanisms that a client was in, each with its
number of rounds; equal mechanisms are counted together. One mechanism is judged by `accountant.epsilon_of`, several by
composing their privacy loss distributions. Epsilons are never added.

Guarantees (tests of the same name):
  one_mechanism_is_the_accountants   a history of one kind of round costs exactly what `epsilon_of` says.
  composition_equals_dp_accounting   several kinds cost what dp-accounting's own accountant says, to 1e-3, never less.
  composition_is_below_adding        and less than the sum of their epsilons.
  rounds_that_fit_leave_no_room      so many rounds keep every budget; one more would not.
  only_the_strictest_matter          budgets that another client's imply are not evaluated.

Valid for mechanisms that are fixed without looking at earlier releases. A plan that was chosen because of an earlier
model's accuracy is an adaptive choice, which this composition does not cover (docs/ledger.md).
"""

import dataclasses
import functools
import math
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from gdpfed.privacy.accountant import (
    COARSE_RELATIVE_ERROR,
    SampledGaussian,
    check_delta,
    delta_after_rounding,
    epsilon_bound,
    epsilon_of,
    gaussian_epsilon,
    grid_interval,
)
from gdpfed.privacy.cache import remembered

__all__ = [
    "Budget", "History", "fits", "merged", "rounds_that_fit", "server_spent", "spent", "strictest", "surely_fits",
]  # fmt: skip

History = tuple[SampledGaussian, ...]
# (epsilon, delta)
Budget = tuple[float, float]


def merged(events: Iterable[SampledGaussian]) -> History:
    """The events with equal mechanisms counted together, in a fixed order."""
    counts: dict[tuple[float, float], int] = {}
    for event in events:
        mechanism = (float(event.noise_multiplier), float(event.sampling_rate))
        counts[mechanism] = counts.get(mechanism, 0) + event.num_rounds
    return tuple(
        SampledGaussian(noise_multiplier=noise, sampling_rate=rate, num_rounds=count)
        for (noise, rate), count in sorted(counts.items())
        if rate > 0
    )


def spent(history: Iterable[SampledGaussian], *, delta: float) -> float:
    """Epsilon at ``delta`` of all events together, against whoever sees only the released models."""
    return _cost(merged(history), delta)


def _cost(events: History, delta: float, *, is_coarse: bool = False) -> float:
    """As `spent`; if ``is_coarse`` an upper bound, about 0.1 % above, much faster: a wider grid is never optimistic."""
    check_delta(delta)
    if not events:
        return 0.0
    if any(event.noise_multiplier == 0 for event in events):
        return math.inf
    if len(events) == 1:
        return (epsilon_bound if is_coarse else epsilon_of)(events[0], delta=delta)
    if all(event.sampling_rate == 1 for event in events):
        return server_spent(_precision(events), delta=delta)
    if is_coarse:
        return _composed(events, delta=delta, is_coarse=True)
    return _composed_epsilon(events=events, delta=float(delta))


def server_spent(precision: float, *, delta: float, hidden: History = ()) -> float:
    """Epsilon at ``delta`` against the server; ``precision`` is 1 / noise_multiplier^2, summed over what it saw.

    ``hidden`` are the events in rotations, of which the server does not see the coins.
    """
    if not hidden:
        return gaussian_epsilon(noise_multiplier=1.0, num_releases=precision, delta=delta)
    seen = [SampledGaussian(noise_multiplier=precision**-0.5, sampling_rate=1.0, num_rounds=1)] if precision else []
    return spent([*hidden, *seen], delta=delta)


def _precision(events: Iterable[SampledGaussian]) -> float:
    """Of unsampled Gaussians: so many releases at noise multiplier 1 would cost the same."""
    return math.fsum(event.num_rounds / event.noise_multiplier**2 for event in events)


@remembered
def _composed_epsilon(*, events: History, delta: float) -> float:
    return _composed(events, delta=delta)


def _composed(history: History, *, delta: float, is_coarse: bool = False) -> float:
    """Several mechanisms: on a coarse grid first, then on the one that the accountant would use for such an epsilon."""
    num_rounds = sum(event.num_rounds for event in history)
    delta = delta_after_rounding(delta, num_rounds)
    if delta == 0:
        return math.inf
    rough = _on_grid(history, delta, grid_interval(1.0, num_rounds, COARSE_RELATIVE_ERROR))
    return rough if is_coarse or math.isinf(rough) else _on_grid(history, delta, grid_interval(rough, num_rounds))


def _on_grid(history: History, delta: float, interval: float) -> float:
    from dp_accounting.pld import privacy_loss_distribution as distributions

    from gdpfed.privacy import pld

    parts = [
        pld.composed_distribution(
            noise_multiplier=event.noise_multiplier,
            sampling_rate=event.sampling_rate,
            num_rounds=event.num_rounds,
            grid_interval=interval,
        )
        for event in history
        if event.sampling_rate < 1
    ]
    unsampled = [event for event in history if event.sampling_rate == 1]
    if unsampled:
        noise_multiplier = 1 / math.sqrt(_precision(unsampled))
        parts.append(distributions.from_gaussian_mechanism(noise_multiplier, value_discretization_interval=interval))
    try:
        total = functools.reduce(lambda one, other: one.compose(other), parts)
    except ValueError:
        # Noise so small that its losses need a wider grid than the others': no bound that is worth having.
        return math.inf
    return float(total.get_epsilon_for_delta(delta))


def strictest(epsilons: NDArray[np.float64], deltas: NDArray[np.float64]) -> tuple[Budget, ...]:
    """The budgets that imply all others: no other is at most as large in both epsilon and delta."""
    if not len(epsilons):
        return ()
    if deltas.min() == deltas.max():
        return ((float(epsilons.min()), float(deltas[0])),)
    order = np.lexsort((deltas, epsilons))
    lowest = np.minimum.accumulate(deltas[order])
    # Sorted by epsilon, a budget matters where its delta is below all before it.
    chosen = order[np.append(True, lowest[1:] < lowest[:-1])]
    return tuple(zip(epsilons[chosen].tolist(), deltas[chosen].tolist(), strict=True))


def fits(history: Iterable[SampledGaussian], budgets: Iterable[Budget]) -> bool:
    """Whether the history keeps all budgets."""
    events = merged(history)
    return all(
        _cost(events, delta, is_coarse=True) <= epsilon or _cost(events, delta) <= epsilon for epsilon, delta in budgets
    )


def surely_fits(history: Iterable[SampledGaussian], budgets: Iterable[Budget]) -> bool:
    """Whether the fast bound shows that it does: about 0.1 % of a budget may be missed."""
    events = merged(history)
    return all(_cost(events, delta, is_coarse=True) <= epsilon for epsilon, delta in budgets)


def rounds_that_fit(
    history: Sequence[SampledGaussian], mechanism: SampledGaussian, *, budgets: Sequence[Budget], at_most: int
) -> int:
    """How many more rounds of ``mechanism``, up to ``at_most``, keep all budgets after ``history``.

    Found with the fast bound, then moved to the exact limit, which is at most a few rounds further.
    """

    def events(count: int) -> History:
        return merged([*history, dataclasses.replace(mechanism, num_rounds=count)])

    most, too_many = 0, at_most + 1
    while too_many - most > 1:
        middle = at_most if too_many > at_most else (most + too_many) // 2
        most, too_many = (middle, too_many) if surely_fits(events(middle), budgets) else (most, middle)
    while most < at_most and fits(events(most + 1), budgets):
        most += 1
    return most
