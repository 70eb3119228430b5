"""Which method and settings are expected to do best."""

import dataclasses
import math

import pytest

from gdpfed.errors import InputError, PrivacyError
from gdpfed.planning.methods import make_plan
from gdpfed.planning.recommend import Recommendation, recommend, server_settings
from gdpfed.planning.settings import PlanSettings
from gdpfed.planning.sparsity import noise_energy_kept
from gdpfed.privacy.budgets import parse_compact
from gdpfed.tasks.task import load_task

SETTINGS = PlanSettings(num_rounds=20, participation=0.05)


@pytest.fixture(scope="module")
def found() -> Recommendation:
    return recommend(parse_compact("300@0.5,300@3"), SETTINGS, num_params=10_000)


@pytest.mark.training
def test_recommended_is_fair_and_best(found: Recommendation) -> None:
    best = found.best.signal_to_noise
    assert found.best.label.startswith("pooled")
    for other in found.others:
        assert other.signal_to_noise <= best / 0.99 + 1e-9
        if other.signal_to_noise >= 0.99 * max(best, *(each.signal_to_noise for each in found.others)):
            assert other.smallest_rate <= found.best.smallest_rate + 1e-6


@pytest.mark.training
def test_top_k_is_counted_in_its_favour(found: Recommendation) -> None:
    """Two groups keep 0.7 and 0.9; what Top-k leaves of the noise is that of docs/limits.md, and no signal is lost."""
    for each in (found.best, *found.others):
        ratio = each.signal_to_noise / each.plan.signal_to_noise
        if each.label == "gdpfed+":
            assert 1 < ratio < 1 / math.sqrt(noise_energy_kept(0.7))
            at_equal_step = each.plan.expected_cohort * each.plan.clip_norm / math.sqrt(each.plan.noise_at_equal_step)
            assert each.signal_to_noise == pytest.approx(at_equal_step)
            assert f"{found.best.signal_to_noise / each.signal_to_noise:.2f} times" in found.reasons[0]
        else:
            assert ratio == pytest.approx(1)


@pytest.mark.training
@pytest.mark.parametrize(
    ("changes", "stated", "expected"),
    [
        ({}, (), (4.5, 0.5)),
        ({}, ("server_learning_rate",), (1.0, 0.5)),
        ({}, ("server_learning_rate", "averaging"), (1.0, 0.0)),
        ({"averaging": 0.3}, (), (4.5, 0.3)),
    ],
)
def test_what_is_stated_is_kept(
    changes: dict[str, float], stated: tuple[str, ...], expected: tuple[float, float]
) -> None:
    """And only what was chosen is said to be supported."""
    settings = dataclasses.replace(SETTINGS, **changes)  # type: ignore[arg-type]  # numbers by name
    advice = recommend(parse_compact("100@1,100@3"), settings, num_params=10, stated=stated)
    assert (advice.best.plan.server_learning_rate, advice.best.plan.averaging) == expected
    assert (advice.settings.server_learning_rate, advice.settings.averaging) == expected
    text = "\n".join(advice.reasons)
    assert ("a server step of" in text) is ("server_learning_rate" not in stated)
    assert ("over a tenth of the rounds" in text) is ("averaging" not in (*stated, *changes))
    assert ("docs/beyond.md" in text) is (len(stated) < 2)


@pytest.mark.parametrize(
    ("of_a_round", "num_rounds", "expected"),
    [(0.76, 50, (3.0, 0.8)), (5.0, 100, (4.5, 0.9)), (0.014, 6, (0.056, 0.0)), (0.3, 10, (1.2, 0.0))],
)
def test_server_settings(of_a_round: float, num_rounds: int, expected: tuple[float, float]) -> None:
    assert server_settings(of_a_round, num_rounds=num_rounds) == expected


@pytest.mark.training
@pytest.mark.parametrize("preset", ["svhn", "cifar10", "shakespeare"])
def test_every_preset_has_a_recommendation(preset: str) -> None:
    """Rates at a floor of 1 may differ by rounding, as those of Shakespeare's 3 x 238 clients do."""
    task = load_task(preset)
    settings = dataclasses.replace(task.settings, num_rounds=3)
    advice = recommend(task.budgets, settings, num_params=1000)
    assert advice.best.plan.method == "pooled"


def test_recommendation_keeps_the_limits(found: Recommendation) -> None:
    plan = found.best.plan
    assert plan.num_rounds == 20
    assert plan.participation == pytest.approx(0.05, rel=1e-9)
    plan.verify()
    assert all(group.epsilon_release <= group.epsilon for group in plan.groups)


def test_predictions_follow_from_the_plan(found: Recommendation) -> None:
    best = found.best
    assert best.of_a_round == pytest.approx(best.signal_to_noise / 100)
    assert best.of_all_rounds == pytest.approx(best.of_a_round * math.sqrt(20))
    assert [each.label for each in found.elsewhere] == [
        "half the rounds", "twice the rounds", "half the participation", "twice the participation",
    ]  # fmt: skip
    text = "\n".join(found.reasons)
    assert "gdpfed+" in text
    assert "docs/beyond.md" in text
    with pytest.raises(InputError, match="parameter"):
        recommend(parse_compact("300@0.5,300@3"), SETTINGS, num_params=0)


@pytest.mark.training
@pytest.mark.parametrize(("clip_norm", "is_warned"), [(0.7, False), (1.5, True)])
def test_a_step_beyond_what_was_measured_is_said(clip_norm: float, is_warned: bool) -> None:
    settings = PlanSettings(num_rounds=5, participation=0.05, clip_norm=clip_norm)
    advice = recommend(parse_compact("100@1,100@3"), settings, num_params=100)
    assert any("try a smaller one" in reason for reason in advice.reasons) is is_warned


def test_watched_from_first_to_last() -> None:
    told: list[tuple[int, int, str]] = []
    settings = PlanSettings(num_rounds=3, participation=0.2, fairness_floor=0.9, delta=1e-4)
    advice = recommend(parse_compact("31@1,7@3"), settings, num_params=10, watch=lambda *report: told.append(report))
    assert [number for number, _, _ in told] == list(range(len(told)))
    assert {total for _, total, _ in told} == {len(told)}
    assert [label for _, _, label in told][-1] == "twice the participation"
    # The floor is for pooled: the other methods are still compared.
    assert {each.label for each in (advice.best, *advice.others)} >= {"dp-fedavg", "gdpfed+", "pooled, floor 0.9"}


def test_a_candidate_that_cannot_be_is_left_out() -> None:
    """Half the participation would promise nothing at this delta; nothing at all can be planned at the next."""
    settings = PlanSettings(num_rounds=1, participation=0.05, delta=0.015, fairness_floor=1.0)
    advice = recommend(parse_compact("31@1,7@3"), settings, num_params=10)
    assert "half the participation" not in [each.label for each in advice.elsewhere]
    with pytest.raises(PrivacyError, match="takes part at all"):
        recommend(parse_compact("31@1,7@3"), dataclasses.replace(settings, delta=0.5), num_params=10)


def test_rates_in_proportion_are_nearly_the_best(found: Recommendation) -> None:
    twice = next(each for each in found.elsewhere if each.label == "twice the rounds")
    sought = make_plan(parse_compact("300@0.5,300@3"), dataclasses.replace(found.settings, num_rounds=40))
    assert 0.99 * sought.signal_to_noise < twice.signal_to_noise < 1.001 * sought.signal_to_noise


@pytest.mark.training
def test_a_recommendation_against_the_server() -> None:
    """Asks and trainings are kept; rates are compared by how often one trains, and no other limits are tried."""
    settings = dataclasses.replace(SETTINGS, against="server", asks=10, trainings=1.0)
    found = recommend(parse_compact("300@0.5,300@3"), settings, num_params=10_000)
    for candidate in (found.best, *found.others):
        assert candidate.plan.is_rotation
        assert candidate.plan.asks == 10
        assert 0 < candidate.smallest_rate <= 1 + 1e-9
    assert found.elsewhere == ()
    assert (found.settings.asks, found.settings.trainings) == (10, 1.0)
