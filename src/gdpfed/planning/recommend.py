"""Which method and settings are expected to do best, and why: a prediction from the plans alone.

Place: above the methods. Nothing is trained and no data is seen, so a recommendation costs no privacy. What plans can
tell is the signal-to-noise of a round: updates of norm C that agree, over the noise's std of a coordinate
(`Plan.signal_to_noise`). Top-k is counted as the most that it can do: no signal lost, and of the noise what the largest
coordinates hold. The noise of a whole update grows with the square root of the model's size, so

    of a round       signal-to-noise / sqrt(number of parameters)
    of all rounds    that times sqrt(number of rounds), if all rounds pull the same way

The server's step follows from the first of the two: what did best on validation examples (docs/beyond.md) is four
times it, so that the noise of a round moves the model by four clip norms; but no more than was tried. The average is
over a tenth of the rounds. Both touch only what is released.

Guarantees (tests of the same name):
  recommended_is_fair_and_best     no candidate has a signal-to-noise above the recommended one's by more than a
                                   hundredth, and none within that has a larger smallest rate.
  recommendation_keeps_the_limits  rounds and mean participation of the recommended plan are those that were stated.
  what_is_stated_is_kept           a server step or averaging that was given, also if it is the default.
  the_step_is_what_did_best        within a factor of 1.5 of what was chosen in every table of choices.
  watched_from_first_to_last       whoever watches is told of every plan before it is made, and how many there are.
"""

import dataclasses
import math
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from gdpfed.errors import GdpfedError, InputError
from gdpfed.planning.methods import for_method, make_plan
from gdpfed.planning.plan import Plan
from gdpfed.planning.settings import PlanSettings
from gdpfed.planning.sparsity import noise_energy_kept
from gdpfed.privacy.accountant import MAX_ROUNDS
from gdpfed.privacy.budgets import Budgets

__all__ = ["Candidate", "Recommendation", "Watch", "recommend", "server_settings"]

# Told before each plan is made: how many were, how many there are, and which one it is.
Watch = Callable[[int, int, str], None]

# The step, over the signal-to-noise of a round. Chosen on validation examples: 3 at 0.76 (FMNIST, features), 4.5 at
# 1.12 (its CNN), 3 at 0.94 (SVHN), 1 at 0.30 (CIFAR-10), 2 at 0.34 (Shakespeare). No larger one was.
_STEP_PER_SIGNAL, _LARGEST_STEP = 4.0, 4.5
# Rounds that are averaged over, as a share of all.
_AVERAGED = 0.1
# Clip norms that these steps were chosen with; models with fewer parameters or other losses may have other scales.
_LARGEST_CLIP = 0.7
# So much of the best signal-to-noise is given up for fairness, at most.
_GIVEN_UP = 0.01
_METHODS = ("dp-fedavg", "gdpfed+", "gdpfed-opc", "idp-fedavg", "idp-scale")
_FLOORS = (0.5, 1.0)


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A plan that was considered; the two ratios are as the module says."""

    label: str
    settings: PlanSettings
    plan: Plan
    num_params: int

    @property
    def signal_to_noise(self) -> float:
        """The plan's, with the noise that Top-k leaves where there is no signal, and all of the signal."""
        drawn = [(group.weight * group.noise_std) ** 2 for group in self.plan.groups]
        shares = [noise_energy_kept(group.keep_fraction) for group in self.plan.groups]
        left = math.fsum(variance * share for variance, share in zip(drawn, shares, strict=True))
        return self.plan.signal_to_noise * math.sqrt(math.fsum(drawn) / left)

    @property
    def of_a_round(self) -> float:
        """Norm of agreeing updates over norm of the noise."""
        return self.signal_to_noise / math.sqrt(self.num_params)

    @property
    def of_all_rounds(self) -> float:
        """The same, of the sum of all rounds."""
        return self.of_a_round * math.sqrt(self.plan.num_rounds)

    @property
    def smallest_rate(self) -> float:
        """Of the group that takes part least, over the mean rate."""
        return min(group.asked * group.sampling_rate for group in self.plan.groups) / self.plan.participation


@dataclass(frozen=True, kw_only=True)
class Recommendation:
    """The settings to take, their candidate, all others, what other limits would give, and reasons in words."""

    settings: PlanSettings
    best: Candidate
    others: tuple[Candidate, ...]
    elsewhere: tuple[Candidate, ...]
    reasons: tuple[str, ...]


def recommend(
    budgets: Budgets,
    settings: PlanSettings,
    *,
    num_params: int,
    stated: Collection[str] = (),
    watch: Watch | None = None,
) -> Recommendation:
    """Compares the methods for these budgets; ``settings`` states rounds and mean participation, which are kept.

    So are the server's settings that are named in ``stated`` or are not the defaults. ``watch`` is told what is tried.
    """
    if num_params < 1:
        raise InputError(f"expected a model of at least one parameter, got {num_params}")
    tried = dict(_candidates(settings))
    limits = _other_limits(settings)
    refused: list[GdpfedError] = []

    def planned(asked: dict[str, PlanSettings], *, done: int) -> Iterator[Candidate]:
        """A plan that does not apply to these budgets is left out: too little participation for the delta, say."""
        for number, (label, each) in enumerate(asked.items(), start=done):
            if watch is not None:
                watch(number, len(tried) + len(limits), label)
            try:
                yield Candidate(label=label, settings=each, plan=make_plan(budgets, each), num_params=num_params)
            except GdpfedError as error:
                refused.append(error)

    candidates = list(planned(tried, done=0))
    if not candidates:
        raise refused[-1]
    largest = max(candidate.signal_to_noise for candidate in candidates)
    near = [each for each in candidates if each.signal_to_noise >= (1 - _GIVEN_UP) * largest]
    best = max(near, key=lambda each: (round(each.smallest_rate, 6), each.signal_to_noise))
    others = tuple(sorted((each for each in candidates if each is not best), key=lambda each: -each.of_a_round))
    kept = {*stated, *settings.changed()}
    if best.plan.release == "pooled":
        step, averaging = server_settings(best.of_a_round, num_rounds=settings.num_rounds)
        served = {
            "server_learning_rate": settings.server_learning_rate if "server_learning_rate" in kept else step,
            "averaging": settings.averaging if "averaging" in kept else averaging,
        }
        chosen = dataclasses.replace(best.settings, **served)  # type: ignore[arg-type]  # numbers by name
        plan = dataclasses.replace(best.plan, **served)  # type: ignore[arg-type]  # numbers by name
        best = dataclasses.replace(best, settings=chosen, plan=plan)
    under = {label: _under(best, change) for label, change in limits.items()}
    elsewhere = tuple(planned(under, done=len(tried)))
    return Recommendation(
        settings=best.settings,
        best=best,
        others=others,
        elsewhere=elsewhere,
        reasons=tuple(_reasons(best, others, elsewhere, largest, kept)),
    )


def server_settings(of_a_round: float, *, num_rounds: int) -> tuple[float, float]:
    """The server's step, to two digits, and its averaging, for the signal-to-noise of a round and so many of them."""
    step = min(_STEP_PER_SIGNAL * of_a_round, _LARGEST_STEP)
    return float(f"{step:.2g}"), round(max(0.0, 1 - 1 / (_AVERAGED * num_rounds)), 2)


def _candidates(settings: PlanSettings) -> Iterator[tuple[str, PlanSettings]]:
    """The methods with their own choices; `pooled` with several floors."""
    for method in _METHODS:
        yield method, for_method(settings, method)
    for floor in sorted({*_FLOORS, settings.fairness_floor}):
        if floor >= settings.fairness_floor:
            yield f"pooled, floor {floor:g}", dataclasses.replace(settings, method="pooled", fairness_floor=floor)


def _other_limits(settings: PlanSettings) -> dict[str, dict[str, float]]:
    """Other rounds and participations, for whoever may change them.

    Against the server asks and trainings are the limits, of which the frontier (`asks.py`) shows more.
    """
    if settings.against == "server":
        return {}
    participation = settings.participation
    return {
        "half the rounds": {"num_rounds": max(1, settings.num_rounds // 2)},
        "twice the rounds": {"num_rounds": min(2 * settings.num_rounds, MAX_ROUNDS)},
        "half the participation": {"participation": participation / 2},
        **({"twice the participation": {"participation": 2 * participation}} if participation <= 0.5 else {}),
    }


def _under(best: Candidate, change: dict[str, float]) -> PlanSettings:
    """The recommended settings under another limit; searched rates are not sought again, but stay in proportion.

    Seeking them again takes four times as long, and raised the signal-to-noise by 0.2 % at most where it was tried.
    """
    chosen = best.settings
    under = dataclasses.replace(chosen, **change)  # type: ignore[arg-type]  # numbers by name
    rates = [group.sampling_rate * under.participation / chosen.participation for group in best.plan.groups]
    if chosen.method != "pooled" or max(rates) > 1:
        return under
    return dataclasses.replace(under, rates=tuple(rates), fairness_floor=PlanSettings().fairness_floor)


def _reasons(
    best: Candidate,
    others: tuple[Candidate, ...],
    elsewhere: tuple[Candidate, ...],
    largest: float,
    kept: Collection[str],
) -> Iterator[str]:
    plan = best.plan
    strictest = next((each for each in others if each.label == "dp-fedavg"), None)
    paper = next((each for each in others if each.label == "gdpfed+"), None)
    if paper is not None:
        yield (
            f"{best.label} has {best.signal_to_noise / paper.signal_to_noise:.2f} times the signal-to-noise of gdpfed+ "
            f"({best.signal_to_noise / paper.plan.signal_to_noise:.2f} times that before Top-k, of which the first "
            f"assumes that it loses no signal): one noise draw serves all groups"
        )
    if strictest is not None:
        yield (
            f"and {best.signal_to_noise / strictest.signal_to_noise:.2f} times that of dp-fedavg, which gives "
            f"everyone the strictest budget"
        )
    if plan.release == "pooled":
        yield (
            f"the floor gives up {100 * (1 - best.signal_to_noise / largest):.1f} % of the best signal-to-noise, and "
            f"the group that takes part least does so at {best.smallest_rate:.2f} of the mean rate"
        )
    yield (
        f"with {best.num_params:,} parameters the noise of one round's update is {1 / best.of_a_round:.1f} times as "
        f"long as an update of norm C on which all agree; over {plan.num_rounds} rounds the signal is "
        f"{best.of_all_rounds:.2f} times the noise"
    )
    if best.of_all_rounds < 1:
        yield (
            "that is little: a smaller model carries less noise, and fixed features (model scattering-linear) give a "
            "linear head more signal"
        )
    if plan.release == "pooled":
        yield from _about_the_server(best, kept)
    better = [each for each in elsewhere if each.of_all_rounds > 1.02 * best.of_all_rounds]
    if better:
        words = ", ".join(f"{each.label} ({each.of_all_rounds / best.of_all_rounds:.2f} times)" for each in better)
        yield f"if the limits may change, all rounds together would have more signal-to-noise with {words}"


def _about_the_server(best: Candidate, kept: Collection[str]) -> Iterator[str]:
    plan = best.plan
    words = {
        "server_learning_rate": f"a server step of {plan.server_learning_rate:g} is {_STEP_PER_SIGNAL:g} times the "
        f"signal-to-noise of a round, and at most {_LARGEST_STEP:g}",
        "averaging": f"averaging {plan.averaging:g} is over a tenth of the rounds",
    }
    # Of ten rounds or fewer a tenth is no average.
    chosen = [text for name, text in words.items() if name not in kept and getattr(plan, name)]
    if chosen:
        yield f"{', and '.join(chosen)}: they touch released sums only; docs/beyond.md has the rows that support them"
    if "server_learning_rate" not in kept and plan.clip_norm > _LARGEST_CLIP:
        yield (
            f"most of those rows have a clip norm of at most {_LARGEST_CLIP:g}; here it is {plan.clip_norm:g}, and "
            f"noise moves the model by step times clip norm: try a smaller one"
        )
