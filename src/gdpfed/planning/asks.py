"""How often to ask and how often to train, for a promise that holds against the server.

Place: before a plan against the server is made. Noise is sized for what the server sees: `asks` releases, in each of
which a client is with the probability of its coin. More asks hide a training better; more trainings are more signal.
Along the *frontier* a round has the signal-to-noise of the plan against models, with the same rounds and participation:
nothing is lost by hiding, but clients pay in asks and trainings.

Guarantees (tests of the same name):
  the_signal_is_kept           what is found has at least the signal-to-noise of the plan against models.
  trainings_are_the_fewest     one per cent fewer would not.
  the_cheapest_is_recommended  of the frontier's points, for the stated cost of an ask.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from gdpfed.errors import InputError
from gdpfed.planning.plan import Plan
from gdpfed.planning.settings import PlanSettings

__all__ = ["Frontier", "FrontierPoint", "balanced", "frontier"]

# Trainings are found to this relative precision, on the upper side.
_PRECISION = 2e-3
_GROWTH = 1.25
# A frontier's numbers of asks: so many for each doubling.
_EACH_DOUBLING = 3

NO_POINT = "the plan against models has more signal-to-noise than any against the server: state asks and trainings"

PlanOf = Callable[[PlanSettings], Plan]


@dataclass(frozen=True, kw_only=True)
class FrontierPoint:
    """So many asks and trainings of a client; ``cost`` counts a training as 1 and an ask as the settings say."""

    asks: int
    trainings: float
    cost: float
    plan: Plan


@dataclass(frozen=True, kw_only=True)
class Frontier:
    """The plan against models, and plans against the server of the same signal-to-noise, from many asks to few."""

    against_models: Plan
    points: tuple[FrontierPoint, ...]

    @property
    def cheapest(self) -> FrontierPoint:
        """What is recommended for the stated cost of an ask."""
        return min(self.points, key=lambda point: point.cost)


def balanced(settings: PlanSettings, plan_of: PlanOf) -> PlanSettings:
    """The settings with asks and trainings stated; those that are stated, and plans against models, stay as they are.

    ``plan_of`` plans settings that state both.
    """
    if settings.against != "server" or (settings.asks and settings.trainings):
        return settings
    signal = _signal_to_keep(settings, plan_of)
    if settings.asks is not None:
        point = _point(settings, plan_of, settings.asks, signal, start=settings.participation * settings.num_rounds)
        if point is None:
            raise InputError(
                f"{settings.asks} asks of a client cannot have the signal-to-noise of the plan against models "
                f"({signal:.4g} a round), even if it trains each time: state more asks, or trainings"
            )
        return _stated(settings, point.asks, point.trainings)
    if settings.trainings is not None:
        return _stated(settings, _fewest_asks(settings, plan_of, settings.trainings, signal), settings.trainings)
    best: FrontierPoint | None = None
    for point in frontier(settings, plan_of):
        # Fewer asks first save asks, and then cost more trainings than they save.
        if best is not None and point.cost > best.cost:
            break
        best = point
    if best is None:
        raise InputError(NO_POINT)
    return _stated(settings, best.asks, best.trainings)


def frontier(settings: PlanSettings, plan_of: PlanOf) -> Iterator[FrontierPoint]:
    """Asks from many to few, for each the fewest trainings that keep the signal-to-noise; ends where none do."""
    signal = _signal_to_keep(settings, plan_of)
    steps = round(_EACH_DOUBLING * math.log2(settings.num_rounds))
    numbers = {round(settings.num_rounds * 2 ** (-step / _EACH_DOUBLING)) for step in range(steps + 1)}
    trainings = settings.participation * settings.num_rounds
    for asks in sorted(numbers, reverse=True):
        point = _point(settings, plan_of, asks, signal, start=trainings)
        if point is None:
            return
        trainings = point.trainings
        yield point


def _signal_to_keep(settings: PlanSettings, plan_of: PlanOf) -> float:
    against_models = dataclasses.replace(settings, against="models", asks=None, trainings=None, correlated_noise=False)
    return plan_of(against_models).signal_to_noise


def _stated(settings: PlanSettings, asks: int, trainings: float) -> PlanSettings:
    return dataclasses.replace(settings, against="server", asks=asks, trainings=trainings)


def _point(settings: PlanSettings, plan_of: PlanOf, asks: int, signal: float, *, start: float) -> FrontierPoint | None:
    """The fewest trainings that reach the signal with so many asks; None if none do. About ``start`` is tried first.

    From few trainings up: the signal need not rise all the way, since with all coins at 1 a method has no rates to
    choose. Then by secants, which are nearly right at once: logarithms of signal and trainings are nearly straight.
    """

    def tried(trainings: float) -> tuple[float, float, Plan]:
        plan = plan_of(_stated(settings, asks, trainings))
        return math.log(trainings), math.log(plan.signal_to_noise / signal), plan

    low = tried(min(start * (1 - _PRECISION), asks))
    while low[1] >= 0:
        low = tried(math.exp(low[0]) / _GROWTH)
    high = low
    while high[1] < 0:
        if high[0] >= math.log(asks):
            return None
        low, high = high, tried(min(math.exp(high[0]) * _GROWTH, asks))
    while high[0] - low[0] > _PRECISION:
        straight = low[0] + (high[0] - low[0]) * low[1] / (low[1] - high[1])
        # A little above the line, and a little below what was found: both sides close in.
        inside = min(max(straight + _PRECISION / 3, low[0] + _PRECISION / 2), high[0] - _PRECISION / 2)
        middle = tried(math.exp(inside))
        low, high = (middle, high) if middle[1] < 0 else (low, middle)
    plan = high[2]
    return FrontierPoint(asks=asks, trainings=plan.trainings, cost=plan.trainings + settings.ask_cost * asks, plan=plan)


def _fewest_asks(settings: PlanSettings, plan_of: PlanOf, trainings: float, signal: float) -> int:
    """The fewest asks that reach the signal with so many trainings."""

    def reaches(asks: int) -> bool:
        return plan_of(_stated(settings, asks, trainings)).signal_to_noise >= signal

    low, high = math.ceil(trainings) - 1, settings.num_rounds
    if not reaches(high):
        raise InputError(
            f"{trainings:g} trainings of a client cannot have the signal-to-noise of the plan against models "
            f"({signal:.4g} a round), even if everybody is asked in every round: state more trainings, or asks"
        )
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if reaches(middle) else (middle, high)
    return high
