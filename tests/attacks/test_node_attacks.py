"""The server that writes the plan attacks a real node. Each attack is performed and fails; without its fix it works."""

import contextlib
import dataclasses
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from gdpfed.flower.node.answers import Node
from gdpfed.flower.node.node_home import NodeBudget, NodeHome, server_allowance
from gdpfed.flower.node.own_ledger import OwnLedger
from gdpfed.flower.shared.terms import Terms
from gdpfed.flower.shared.wire import pack
from gdpfed.planning.plan import Plan, guaranteed
from gdpfed.planning.plan_file import plan_to_toml
from tests.attacks.defences import without_the_rule
from tests.flower.federations import DELTA, NUM_PARAMS, Federation

pytestmark = pytest.mark.training

VICTIM = 1


def federation_of(path: Path, **settings: object) -> Federation:
    return Federation(path, sizes=(3, 3), epsilons=(1.0, 4.0), participation=0.9, rounds=2, settings=dict(settings))


def asked_for_keys(federation: Federation, plan: Plan) -> bytes:
    """What the victim answers to a server that signs this plan, in its first round."""
    chosen = federation.home.settings
    terms = Terms(
        run="attack",
        plan=plan_to_toml(plan),
        dropout_rate=float(chosen.dropout_rate),
        colluding_fraction=float(chosen.colluding_fraction),
        complete_up_to=chosen.complete_up_to,
        enrolment=federation.enrolment.digest,
        num_params=NUM_PARAMS,
        test_seed=chosen.test_seed,
    )
    node = Node(federation.node(VICTIM), node_id=1, num_params=NUM_PARAMS, train=lambda vector, _: vector)
    return node.answer("keys", pack("keys", terms.signed(federation.home.identity), b""))


@contextlib.contextmanager
def without_a_limit() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(NodeBudget, "server_limit", property(lambda _: math.inf))
        yield


def bare_plan(federation: Federation) -> Plan:
    """Next to no noise, and rates so small that delta covers all of it: epsilon_release is 0, and claims so."""
    groups = tuple(
        dataclasses.replace(group, sampling_rate=1e-7, noise_multiplier=0.05) for group in federation.plan.groups
    )
    with without_the_rule():
        made = guaranteed(dataclasses.replace(federation.plan, groups=groups))
    assert {group.epsilon_release for group in made.groups} == {0.0}
    assert all(group.epsilon_server > 200 for group in made.groups)
    return made


@pytest.mark.training
def test_a_plan_that_promises_nothing_is_refused(tmp_path: Path) -> None:
    federation = federation_of(tmp_path)
    plan = bare_plan(federation)
    with without_a_limit():
        assert asked_for_keys(federation, plan) == b""
    assert "delta" in federation.node_log(VICTIM)
    with OwnLedger(federation.node(VICTIM)) as ledger:
        assert not ledger.runs
    # Teeth: without both defences the node gives its keys, and would send its update with next to no noise.
    with without_the_rule(), without_a_limit():
        assert asked_for_keys(federation, plan) != b""


def test_the_server_that_writes_the_plan_is_bounded(tmp_path: Path) -> None:
    """An owner who said nothing about the server: one input with too little noise is too much, whatever the plan."""
    federation = federation_of(tmp_path)
    with without_the_rule():
        assert asked_for_keys(federation, bare_plan(federation)) == b""
    assert "more than the 10 that its owner allows" in federation.node_log(VICTIM)


@pytest.mark.parametrize("epsilon", [0.5, 3.0, 12.0])
def test_every_node_has_a_finite_limit(epsilon: float) -> None:
    budget = NodeBudget(name="node", epsilon=epsilon, delta=1e-5)
    assert budget.server_limit == server_allowance(epsilon) == max(10.0, 10 * epsilon)
    assert NodeBudget(name="node", epsilon=epsilon, delta=1e-5, epsilon_server=2.0).server_limit == 2.0


def test_an_old_home_has_the_limit_too(tmp_path: Path) -> None:
    """A budget.toml of before: what it does not say is the default."""
    federation = federation_of(tmp_path)
    home = federation.node(VICTIM)
    (home.path / "budget.toml").write_text(f'name = "1"\nepsilon = 1.0\ndelta = {DELTA}\nallow_test_mode = true\n')
    assert NodeHome(home.path).budget.server_limit == 10.0
    assert NodeHome(home.path).budget.colluding_fraction == 0.1


@pytest.mark.parametrize(
    ("settings", "words"),
    [({"colluding_fraction": 0.0}, "colluding fraction of 0"), ({"complete_up_to": 50}, "complete graph up to 100")],
)
def test_a_server_that_stands_less_is_refused(settings: dict[str, object], words: str, tmp_path: Path) -> None:
    """Nobody answers: only noise is released. With the owners' consent everybody does."""
    federation = federation_of(tmp_path, **settings)
    federation.serve()
    assert all(words in federation.node_log(number) for number in np.flatnonzero(asked(federation)))
    assert asked(federation).any()
    for number in federation.numbers:
        path = federation.node_path(number) / "budget.toml"
        lines = [line for line in path.read_text().splitlines() if line.split(" = ")[0] not in settings]
        path.write_text("\n".join([*lines, *(f"{name} = {value}" for name, value in settings.items())]) + "\n")
        federation.node_path(number).joinpath("node.log").unlink(missing_ok=True)
    assert asked_for_keys(federation, federation.plan) != b""


def asked(federation: Federation) -> np.ndarray:
    """Which nodes have something in their logs."""
    return np.array([bool(federation.node_log(number)) for number in federation.numbers])
