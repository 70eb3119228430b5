"""What `gdpfed plan --objective` prints."""

from typing import Any

from gdpfed.cli.show import console, table
from gdpfed.planning.recommend import Candidate, Recommendation

__all__ = ["print_recommendation", "recommendation_as_json"]


def _row(candidate: Candidate) -> list[str]:
    plan = candidate.plan
    return [
        candidate.label,
        f"{plan.num_rounds}",
        f"{100 * plan.participation:.3g} %",
        f"{candidate.signal_to_noise:.1f}",
        f"{candidate.of_a_round:.3f}",
        f"{candidate.of_all_rounds:.2f}",
        f"{candidate.smallest_rate:.2f}",
    ]


def print_recommendation(advice: Recommendation, *, title: str) -> None:
    """The candidates, best first, the reasons, and how to ask for the plan by name."""
    out = console()
    head = ["plan", "rounds", "participation", "signal/noise", "of a round", "of all rounds", "smallest rate"]
    rows = [_row(advice.best), *(_row(each) for each in advice.others)]
    size = f"{advice.best.num_params:,} parameters"
    out.print(table(f"{title}: predicted for {size}, recommended first", head, rows))
    out.print(table("The recommended plan under other limits", head, [_row(each) for each in advice.elsewhere]))
    for reason in advice.reasons:
        out.print(f"- {reason}", soft_wrap=True)
    out.print(f"the same plan by name: {_options(advice)}\n", soft_wrap=True)


def _options(advice: Recommendation) -> str:
    asked = advice.settings
    words = [f"--method {asked.method}"]
    for name in ("fairness_floor", "server_learning_rate", "averaging"):
        if name in asked.changed():
            words.append(f"--{name.replace('_', '-')} {getattr(asked, name):g}")
    return " ".join(words)


def _as_json(candidate: Candidate) -> dict[str, Any]:
    plan = candidate.plan
    return {
        "plan": candidate.label,
        "num_rounds": plan.num_rounds,
        "participation": plan.participation,
        "signal_to_noise": candidate.signal_to_noise,
        "of_a_round": candidate.of_a_round,
        "of_all_rounds": candidate.of_all_rounds,
        "smallest_rate": candidate.smallest_rate,
    }


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
