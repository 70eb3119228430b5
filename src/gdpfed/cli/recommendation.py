"""What `gdpfed plan --objective` prints."""

from typing import Any

from gdpfed.cli.show import console, say, table
from gdpfed.planning.recommend import Candidate, Recommendation

__all__ = ["print_recommendation", "recommendation_as_json"]

_COLUMNS = ["plan", "rounds", "participation", "signal/noise", "of a round", "of all rounds", "smallest rate"]


def _row(candidate: Candidate) -> list[str]:
    plan = candidate.plan
    predicted = [f"{candidate.signal_to_noise:.1f}", f"{candidate.of_a_round:.3f}", f"{candidate.of_all_rounds:.2f}"]
    asked = [candidate.label, f"{plan.num_rounds}", f"{100 * plan.participation:.3g} %"]
    return [*asked, *predicted, f"{candidate.smallest_rate:.2f}"]


def print_recommendation(advice: Recommendation, *, title: str) -> None:
    """The candidates, best first, the reasons, and how to ask for the plan by name."""
    heading = f"{title}: predicted for {advice.best.num_params:,} parameters, recommended first"
    console().print(table(heading, _COLUMNS, map(_row, (advice.best, *advice.others))))
    console().print(table("The recommended plan under other limits", _COLUMNS, map(_row, advice.elsewhere)))
    say(*(f"- {reason}" for reason in advice.reasons), f"the same plan by name: {_options(advice)}\n")


def _options(advice: Recommendation) -> str:
    settings = advice.settings
    words = [f"--method {settings.method}"]
    for name in ("fairness_floor", "server_learning_rate", "averaging"):
        if name in settings.changed():
            words.append(f"--{name.replace('_', '-')} {getattr(settings, name):g}")
    return " ".join(words)


def _as_json(candidate: Candidate) -> dict[str, Any]:
    names = ("signal_to_noise", "of_a_round", "of_all_rounds", "smallest_rate")
    asked = {"num_rounds": candidate.plan.num_rounds, "participation": candidate.plan.participation}
    return {"plan": candidate.label, **asked, **{name: getattr(candidate, name) for name in names}}


def recommendation_as_json(advice: Recommendation) -> dict[str, Any]:
    """The same for machines."""
    return {
        "model_size": advice.best.num_params,
        "options": _options(advice),
        "recommended": _as_json(advice.best),
        "others": [_as_json(each) for each in advice.others],
        "elsewhere": [_as_json(each) for each in advice.elsewhere],
        "reasons": list(advice.reasons),
    }
