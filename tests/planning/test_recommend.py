"""Which method and settings are expected to do best."""

import math

import pytest

from gdpfed.errors import InputError
from gdpfed.planning.recommend import Recommendation, recommend
from gdpfed.planning.settings import PlanSettings
from gdpfed.privacy.budgets import parse_compact

SETTINGS = PlanSettings(num_rounds=20, participation=0.05)


@pytest.fixture(scope="module")
def found() -> Recommendation:
    return recommend(parse_compact("300@0.5,300@3"), SETTINGS, num_params=10_000)


def test_recommended_is_fair_and_best(found: Recommendation) -> None:
    best = found.best.plan.signal_to_noise
    assert found.best.label.startswith("pooled")
    for other in found.others:
        assert other.plan.signal_to_noise <= best / 0.99 + 1e-9
        if other.plan.signal_to_noise >= 0.99 * max(best, *(each.plan.signal_to_noise for each in found.others)):
            assert other.smallest_rate <= found.best.smallest_rate + 1e-6


def test_recommendation_keeps_the_limits(found: Recommendation) -> None:
    plan = found.best.plan
    assert plan.num_rounds == 20
    assert plan.participation == pytest.approx(0.05, rel=1e-9)
    plan.verify()
    assert all(group.epsilon_release <= group.epsilon for group in plan.groups)


def test_predictions_follow_from_the_plan(found: Recommendation) -> None:
    best = found.best
    assert best.of_a_round == pytest.approx(best.plan.signal_to_noise / 100)
    assert best.of_all_rounds == pytest.approx(best.of_a_round * math.sqrt(20))
    assert [each.label for each in found.elsewhere] == [
        "half the rounds", "twice the rounds", "half the participation", "twice the participation",
    ]  # fmt: skip
    text = "\n".join(found.reasons)
    assert "gdpfed+" in text
    assert "docs/beyond.md" in text
    with pytest.raises(InputError, match="parameter"):
        recommend(parse_compact("300@0.5,300@3"), SETTINGS, num_params=0)


@pytest.mark.parametrize(("clip_norm", "is_warned"), [(0.7, False), (1.5, True)])
def test_a_step_beyond_what_was_measured_is_said(clip_norm: float, is_warned: bool) -> None:
    settings = PlanSettings(num_rounds=5, participation=0.05, clip_norm=clip_norm)
    advice = recommend(parse_compact("100@1,100@3"), settings, num_params=1000)
    assert any("smaller clip norm" in reason for reason in advice.reasons) is is_warned
