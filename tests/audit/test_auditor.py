"""The audit as a whole: silent about correct code, loud about every known mistake."""

import dataclasses
import json

import pytest

from gdpfed.audit import auditor as auditing
from gdpfed.audit.auditor import audit_plan, index_of_group
from gdpfed.audit.canaries import float_path
from gdpfed.audit.controls import CONTROLS
from gdpfed.audit.integer_release import every_size_complete
from gdpfed.audit.privacy_curves import AuditedGroup
from gdpfed.errors import InputError
from gdpfed.planning.methods import make_plan
from gdpfed.planning.settings import PlanSettings
from gdpfed.privacy.budgets import parse_compact
from gdpfed.training.sampling import tossed
from tests.audit.plans import fmnist_plan, rotation_plan, small_plan

pytestmark = pytest.mark.training


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_correct_code_is_never_flagged(seed: int) -> None:
    """Three budgets, float sums at 10,000 canaries and integer ones at 2,000; alpha = 1e-3 for each report. A tenth of
    the clients vanishes, a tenth colludes."""
    plan = fmnist_plan()
    for mechanisms, num_canaries in ((("float",), 10_000), (("integer",), 2_000)):
        report = audit_plan(
            plan,
            seed=seed,
            num_canaries=num_canaries,
            mechanisms=mechanisms,
            with_controls=False,
            with_power=False,
        )
        assert not report.contradicted
        # Lost sums in each group, and one server that lies.
        assert len(report.rows) == (9 if mechanisms == ("float",) else 13)
        for row in report.rows:
            assert row.finding.epsilon_lower <= row.finding.claim
            assert row.finding.curve_lower <= row.finding.curve_claim


@pytest.mark.parametrize("group_index", [0, 1, 2])
def test_every_control_is_flagged(group_index: int) -> None:
    """At budgets 0.5, 1.5 and 3, with 6,000 canaries."""
    assert len(CONTROLS) == 12
    audited = AuditedGroup(plan=fmnist_plan(), group_index=group_index, num_canaries=6_000, seed=1)
    tolerance = every_size_complete(dropout=0.1, colluders=0.1)
    audit = auditing._GroupAudit(audited=audited, tolerance=tolerance, alpha=1e-4)
    mistakes = [control for control in CONTROLS if control.is_mistake(audited)]
    assert len(mistakes) == 7
    for control in mistakes:
        result = audit.control(control)
        assert result.flagged, control.name
        if control.path is not None or control.believed is not None:
            assert (result.finding.noise_at_most or 9) < 1


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_rotation_stands_against_the_server(seed: int) -> None:
    """Asked 50 times, a coin of 0.02, epsilon 0.5: float sums at 10,000 canaries, integer ones at 400, where all of
    400 clients of a roster add noise."""
    plan = rotation_plan()
    for mechanisms, num_canaries in ((("float",), 10_000), (("integer",), 400)):
        report = audit_plan(
            plan,
            seed=seed,
            num_canaries=num_canaries,
            mechanisms=mechanisms,
            group_indices=[0],
            with_controls=False,
            with_power=False,
        )
        assert not report.contradicted
        claims = {row.view: row.finding.claim for row in report.rows}
        assert claims["release"] == claims["server"] <= 0.5
        # Two views, and for integers a server that lies: neither a sampler nor lost sums.
        assert [row.view for row in report.rows] == ["release", "server", "lies"][: 2 + ("integer" in mechanisms)]
        assert report.alpha_each == pytest.approx(1e-3 / len(report.rows))


@pytest.mark.parametrize("number", range(len(CONTROLS)))
def test_every_control_of_a_rotation_is_flagged(number: int) -> None:
    """Asked 50 times, a coin of 0.02, epsilon 0.5: with 10,000 canaries, or where every client of a roster makes its
    noise with 1,000."""
    control = CONTROLS[number]
    is_slow = control.path is not None and control.path.make_release is not float_path.make_release
    audited = AuditedGroup(plan=rotation_plan(), group_index=0, num_canaries=1_000 if is_slow else 10_000, seed=1)
    if not control.is_mistake(audited):
        assert control.sampling == ("poisson",)
        return
    tolerance = every_size_complete(dropout=0.1, colluders=0.1)
    result = auditing._GroupAudit(audited=audited, tolerance=tolerance, alpha=1e-4).control(control)
    assert result.flagged
    if control.sampling == ("rotation",) and control.path is not None and control.path.toss is tossed:
        assert result.view == "server"


def test_what_is_no_mistake_of_a_rotation_is_no_control() -> None:
    """With a coin of 1 there is nothing to know."""
    settings = PlanSettings(
        method="dp-fedavg", num_rounds=2, participation=0.5, against="server", asks=1, trainings=1.0
    )
    audited = AuditedGroup(plan=make_plan(parse_compact("50@1"), settings), group_index=0, num_canaries=200, seed=1)
    mistakes = [control.sampling for control in CONTROLS if control.is_mistake(audited)]
    assert set(mistakes) == {("poisson", "rotation")}


def test_what_is_no_mistake_is_no_control() -> None:
    """Everybody in one round: the cohort is of fixed size, and there is one noise key."""
    settings = PlanSettings(method="dp-fedavg", num_rounds=1, participation=1.0)
    plan = make_plan(parse_compact("50@1"), settings)
    report = audit_plan(plan, seed=1, num_canaries=2_000, mechanisms=("float",), with_power=False)
    assert len(report.controls) == 5
    assert report.is_sighted
    assert not report.contradicted


def test_server_view_exceeds_the_release_epsilon() -> None:
    """An "epsilon 0.5" release: whoever knows who took part has more than 0.5, and less than the server's epsilon."""
    plan = fmnist_plan()
    report = audit_plan(
        plan,
        seed=1,
        num_canaries=10_000,
        mechanisms=("float",),
        group_indices=[0],
        with_controls=False,
        with_power=False,
    )
    release, server = (next(row.finding for row in report.rows if row.view == view) for view in ("release", "server"))
    assert release.epsilon_lower <= plan.groups[0].epsilon == 0.5
    assert 0.5 < server.epsilon_lower < plan.groups[0].epsilon_server
    assert 0.5 < server.curve_lower < server.curve_claim < plan.groups[0].epsilon_server


def test_report_states_its_power() -> None:
    plan = small_plan()
    report = audit_plan(plan, seed=4, num_canaries=1_000, mechanisms=("float",), group_indices=[2], with_controls=False)
    content = json.loads(json.dumps(report.as_json(), allow_nan=False))
    assert content["contradicted"] is False
    assert content["every_control_flagged"] is None
    release, server, sampler = content["claims"]
    assert sampler["view"] == "others"
    for claim in (release, server):
        assert 0 < claim["smallest_visible_noise"] < 1
        assert claim["tight_mechanism"]["epsilon_lower"] <= claim["claim"]
    assert report.alpha_each == pytest.approx(1e-3 / 3)


def test_alpha_is_for_all_claims() -> None:
    """Of integer sums also lost ones, in each group, and the server that lies."""
    plan = small_plan()
    report = audit_plan(
        plan,
        seed=4,
        num_canaries=400,
        group_indices=[1, 2],
        dropout=0.2,
        colluders=0.0,
        with_controls=False,
        with_power=False,
    )
    assert len(report.rows) == 13
    assert report.alpha_each == pytest.approx(1e-3 / 13)
    content = report.as_json()
    assert (content["dropout"], content["colluders"]) == (0.2, 0.0)
    assert [(claim["mechanism"], claim["view"]) for claim in content["claims"][-2:]] == [
        ("integer", "losses"),
        ("protocol", "lies"),
    ]
    # The strictest of those that are audited.
    assert content["claims"][-1]["group"] == "group 2"
    assert not report.contradicted


def test_a_false_plan_is_contradicted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The real path with half of the noise."""
    plan = small_plan()
    short = lambda given: dataclasses.replace(  # noqa: E731 - as small as the mistake
        given,
        groups=tuple(dataclasses.replace(group, noise_multiplier=group.noise_multiplier / 2) for group in given.groups),
    )
    monkeypatch.setitem(auditing.PATHS, "float", dataclasses.replace(auditing.PATHS["float"], plan=short))
    report = audit_plan(
        plan,
        seed=1,
        num_canaries=3_000,
        mechanisms=("float",),
        group_indices=[1],
        with_controls=False,
        with_power=False,
    )
    assert report.contradicted
    server = next(row.finding for row in report.rows if row.view == "server")
    assert 0.5 < (server.noise_at_most or 9) < 0.8


def test_what_cannot_be_audited_is_refused() -> None:
    plan = small_plan()
    with pytest.raises(InputError, match="no privacy to audit"):
        audit_plan(make_plan(parse_compact("50@1"), PlanSettings(method="fedavg")), seed=1)
    with pytest.raises(InputError, match="did you mean 'float'"):
        audit_plan(plan, seed=1, mechanisms=("floot",))
    with pytest.raises(InputError, match="0 < alpha"):
        audit_plan(plan, seed=1, alpha=0.0)
    with pytest.raises(InputError, match=r"dropout_rate < 0\.5"):
        audit_plan(plan, seed=1, dropout=0.5)
    with pytest.raises(InputError, match="did you mean 'group 1'"):
        index_of_group(plan, "group1")
