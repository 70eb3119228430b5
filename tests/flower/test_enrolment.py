"""Announcements, enrolments and homes."""

import dataclasses
import json
import stat
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gdpfed.cli import main
from gdpfed.errors import GdpfedError, InputError, PrivacyError
from gdpfed.flower.node.node_home import NodeHome, make_node_home, pin
from gdpfed.flower.operate.between_runs import enrol, give_up, set_plan
from gdpfed.flower.server.deployment_settings import DeploymentSettings
from gdpfed.flower.server.server_home import ServerHome, make_server_home
from gdpfed.flower.shared.enrolment import Announcement, Enrolment, announce, enrolment_from_json, signed_enrolment
from gdpfed.ledger.book import Ledger
from gdpfed.ledger.charges import ExhaustedError
from gdpfed.ledger.status import run_status
from gdpfed.ledger.verify import verify_ledger
from tests.cli.test_cli import call
from tests.flower.federations import Federation, plan_for
from tests.flower.test_wire import mutated

SERVER = bytes([9]) * 32


def client(number: int, epsilon: float = 1.0) -> Announcement:
    return announce(name=f"client {number}", identity=bytes([number]) * 32, epsilon=epsilon, delta=1e-5)


ENROLMENT = signed_enrolment([client(1), client(2, 3.0)], identity=SERVER)


def test_an_enrolment_is_what_was_announced() -> None:
    text = ENROLMENT.as_json()
    assert enrolment_from_json(text) == ENROLMENT
    assert ENROLMENT.budgets.clients == ("client 1", "client 2")
    changed = json.loads(text)
    changed["clients"][0]["epsilon"] = 50.0
    # Signed by the operator, but not by the client whose budget it is.
    forged = Enrolment(
        server=ENROLMENT.server, clients=tuple(Announcement.from_mapping(part) for part in changed["clients"])
    )
    with pytest.raises(PrivacyError, match="'client 1' is not signed by its identity"):
        signed_enrolment(forged.clients, identity=SERVER)
    with pytest.raises(PrivacyError, match="not signed by its server"):
        enrolment_from_json(json.dumps(changed))


def test_every_identity_once() -> None:
    with pytest.raises(InputError, match="every identity once"):
        signed_enrolment([client(1), dataclasses.replace(client(1), name="other")], identity=SERVER)
    with pytest.raises(InputError, match="every name once"):
        signed_enrolment([client(1), dataclasses.replace(client(2), name="client 1")], identity=SERVER)


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_mutated_enrolments_are_refused(data: st.DataObject) -> None:
    content = mutated(ENROLMENT.as_json().encode(), data)
    try:
        found = enrolment_from_json(content)
    except GdpfedError:
        return
    # White space may differ, nothing else.
    assert found == ENROLMENT


@pytest.mark.parametrize("number", [10**400, float("nan"), float("inf"), True, "1", None, [1.0]])
def test_a_budget_is_a_number(number: object) -> None:
    for name in ("epsilon", "delta"):
        content = json.loads(ENROLMENT.as_json())
        content["clients"][0][name] = number
        with pytest.raises(InputError):
            enrolment_from_json(json.dumps(content))


def test_keys_are_private(tmp_path: Path) -> None:
    make_server_home(tmp_path / "server")
    make_node_home(tmp_path / "node", epsilon=1.0, delta=1e-5)
    for path in (tmp_path / "server" / "server.key", tmp_path / "node" / "identity.key"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        before = path.read_bytes()
        with pytest.raises(InputError, match="never overwritten"):
            make_server_home(path.parent) if path.name == "server.key" else make_node_home(
                path.parent, epsilon=2.0, delta=1e-5
            )
        assert path.read_bytes() == before
    (tmp_path / "node" / "identity.key").chmod(0o644)
    with pytest.raises(PrivacyError, match="chmod 600"):
        _ = NodeHome(tmp_path / "node").identity
    with pytest.raises(InputError, match="make one first"):
        NodeHome(tmp_path / "nowhere")
    with pytest.raises(InputError, match="make one first"):
        ServerHome(tmp_path / "nowhere")


def test_another_enrolment_needs_the_owner(tmp_path: Path) -> None:
    make_server_home(tmp_path / "server")
    announced = make_node_home(tmp_path / "node", epsilon=1.0, delta=1e-5)
    first = enrol(tmp_path / "server", [announced])
    pin(tmp_path / "node", first.as_json())
    pin(tmp_path / "node", first.as_json())
    second = enrol(tmp_path / "server", [make_node_home(tmp_path / "more", epsilon=2.0, delta=1e-5)])
    assert [entry.name for entry in second.clients] == ["node", "more"]
    with pytest.raises(PrivacyError, match="differs from the pinned one"):
        pin(tmp_path / "node", second.as_json())
    pin(tmp_path / "node", second.as_json(), renew=True)
    assert NodeHome(tmp_path / "node").enrolment == second
    other = make_server_home(tmp_path / "other")
    with pytest.raises(PrivacyError, match="another server"):
        pin(tmp_path / "node", enrol(other.path, [announced]).as_json())
    with pytest.raises(PrivacyError, match="does not list this node"):
        pin(tmp_path / "more", first.as_json())
    (tmp_path / "node" / "budget.toml").write_text('name = "node"\nepsilon = 0.5\ndelta = 1e-5\n')
    with pytest.raises(PrivacyError, match="another budget"):
        pin(tmp_path / "node", second.as_json(), renew=True)
    # The pinned file cannot be swapped.
    (tmp_path / "node" / "enrolment.json").write_text(first.as_json())
    with pytest.raises(PrivacyError, match="not the enrolment that was pinned"):
        _ = NodeHome(tmp_path / "node").enrolment


def test_whoever_is_enrolled_is_in_the_ledger(tmp_path: Path) -> None:
    make_server_home(tmp_path / "server")
    enrol(tmp_path / "server", [make_node_home(tmp_path / "a", epsilon=1.0, delta=1e-5)])
    announced = tmp_path / "b.json"
    announced.write_text(make_node_home(tmp_path / "b", epsilon=2.0, delta=1e-6))
    enrol(tmp_path / "server", [announced])
    enrol(tmp_path / "server", [announced])
    population = Ledger.read(tmp_path / "server" / "ledger").state.population("clients")
    assert population.labels == ["a", "b"]
    assert population.epsilons.tolist() == [1.0, 2.0]
    assert population.deltas.tolist() == [1e-5, 1e-6]


def test_a_plan_is_for_the_enrolled(tmp_path: Path) -> None:
    federation = Federation(tmp_path, sizes=(2, 2), epsilons=(1.0, 4.0), share=0.5)
    with pytest.raises(GdpfedError):
        set_plan(federation.home.path, plan_for((2, 2), (2.0, 4.0), "gdpfed+", 2, 0.7, None))
    name = federation.home.run_name
    federation.serve()
    assert set_plan(federation.home.path, federation.plan) != name
    assert (federation.home.path / name / "model.safetensors").is_file()
    (federation.home.run_path).mkdir()
    with pytest.raises(InputError, match="not finished"):
        set_plan(federation.home.path, federation.plan)


def test_a_plan_is_set_or_it_is_not(tmp_path: Path) -> None:
    federation = Federation(tmp_path, sizes=(2, 2), epsilons=(1.0, 4.0), share=0.5)
    home, first = federation.home, federation.home.run_name
    federation.serve()
    other = dataclasses.replace(federation.plan, averaging=0.5)

    def killed_at(point: str) -> None:
        def fault(name: str) -> None:
            if name == point:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            set_plan(home.path, other, fault=fault)

    # A new plan, and the old run's name: neither the old nor a new run starts.
    killed_at("plan")
    with pytest.raises(InputError, match=f"expected the plan of run {first!r}.*set the plan again"):
        federation.serve()
    assert home.run_path.is_dir()
    # A new name, and the old run's folder.
    killed_at("run")
    with pytest.raises(PrivacyError, match="of another run or plan: set the plan again"):
        federation.serve()
    name = set_plan(home.path, other)
    assert (home.path / first / "model.safetensors").is_file()
    assert home.run_name == name
    assert not home.run_path.exists()
    # Of all these runs one began.
    assert list(federation.ledger().state.runs) == [first]


def test_a_plan_that_does_not_fit_is_not_set(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All was spent but a little: the same plan is refused when it is set, one for what is left is served."""
    federation = Federation(tmp_path, sizes=(2, 2), epsilons=(1.0, 4.0), share=0.8)
    home, first = federation.home, federation.home.run_name
    federation.serve()
    before = home.plan_path.read_bytes()
    with pytest.raises(ExhaustedError, match="gdpfed ledger plan"):
        set_plan(home.path, federation.plan)
    assert (home.plan_path.read_bytes(), home.run_name) == (before, first)
    assert home.run_path.is_dir()
    rest = str(tmp_path / "rest.toml")
    options = ("--rounds", "2", "--participation", "0.7", "--method", federation.method, "--out", rest)
    assert call(capsys, "ledger", "plan", str(home.ledger_path), *options)[0] == 0
    assert call(capsys, "flower", "plan", str(home.path), "--file", rest)[0] == 0
    federation.plan = home.plan
    assert [group.epsilon for group in home.plan.groups] == [1.0, 4.0]
    assert all(group.epsilon_release < 0.7 * group.epsilon for group in home.plan.groups)
    assert federation.serve().round_number == 2
    verify_ledger(home.ledger_path)


def promised(federation: Federation, name: str) -> list[float]:
    state = federation.ledger().state
    return [part.promised for part in run_status(state, state.run(name))]


def test_a_run_is_given_up_in_the_ledger(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    federation = Federation(tmp_path, sizes=(2, 2), epsilons=(1.0, 4.0), share=0.5)
    home = federation.home

    def stop(point: str, number: int) -> None:
        if (point, number) == ("checkpointed", 0):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        federation.serve(fault=stop)
    name = home.run_name
    with pytest.raises(SystemExit):
        main(["resume", str(home.run_path)])
    assert "is of a deployment, which goes on with its own nodes: flwr run" in capsys.readouterr().err
    with pytest.raises(InputError, match="gdpfed flower give-up"):
        set_plan(home.path, federation.plan)
    held = promised(federation, name)
    assert give_up(home.path) == name
    closed = Ledger.read(home.ledger_path)
    assert not closed.state.run(name).is_open
    spent = list(closed.spent_by_group(closed.state.run(name)).values())
    assert min(spent) > 0
    assert [before > after for before, after in zip(held, promised(federation, name), strict=True)] == [True, True]
    assert promised(federation, name) == spent
    assert (home.path / f"{name}-given-up" / "checkpoint.safetensors").is_file()
    with pytest.raises(InputError, match="set a plan first"):
        federation.serve()
    # Before it began, and twice.
    second = set_plan(home.path, federation.plan)
    assert give_up(home.path) == second
    with pytest.raises(InputError, match="set a plan first"):
        give_up(home.path)


def test_settings_are_a_file(tmp_path: Path) -> None:
    made = DeploymentSettings(dropout_rate=0.2, input_seconds=7.0)
    home = make_server_home(tmp_path, settings=made)
    assert home.settings == made
    with pytest.raises(InputError, match="keys_seconds"):
        DeploymentSettings(keys_seconds=0.0)
    (tmp_path / "settings.toml").write_text("dropout = 0.1")
    with pytest.raises(InputError, match="did you mean 'dropout_rate'"):
        _ = home.settings


def test_a_log_is_bounded_and_harmless(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gdpfed.flower.shared.home_files._LARGEST_LOG", 1000)
    make_node_home(tmp_path, epsilon=1.0, delta=1e-5, name="x")
    home = NodeHome(tmp_path)
    for _ in range(100):
        home.log("a line\nand \x1b[31m another")
    lines = (tmp_path / "node.log").read_text().splitlines()
    assert sum(path.stat().st_size for path in tmp_path.glob("node.log*")) < 3000
    assert all(line.endswith("a line?and ?[31m another") for line in lines)
    assert stat.S_IMODE((tmp_path / "node.log").stat().st_mode) == 0o600


def test_a_pin_that_was_cut_off_is_made_whole(tmp_path: Path) -> None:
    """Killed between the new enrolment and its hash: the owner's word is enough to go on."""
    make_server_home(tmp_path / "server")
    first = enrol(tmp_path / "server", [make_node_home(tmp_path / "node", epsilon=1.0, delta=1e-5)])
    pin(tmp_path / "node", first.as_json())
    second = enrol(tmp_path / "server", [make_node_home(tmp_path / "more", epsilon=2.0, delta=1e-5)])
    for name, content in (("enrolment.json", second.as_json()), ("enrolment.sha256", "no hash")):
        (tmp_path / "node" / name).write_text(content)
        with pytest.raises(PrivacyError, match="with renew"):
            pin(tmp_path / "node", second.as_json())
    pin(tmp_path / "node", second.as_json(), renew=True)
    assert NodeHome(tmp_path / "node").enrolment == second


def test_nobody_is_enrolled_in_the_middle_of_a_run(tmp_path: Path) -> None:
    """The run's terms name the enrolment: with another one it could never go on."""
    server = make_server_home(tmp_path / "server")
    announced = make_node_home(tmp_path / "node", epsilon=1.0, delta=1e-5)
    first = enrol(server.path, [announced])
    server.run_path.mkdir()
    more = make_node_home(tmp_path / "more", epsilon=2.0, delta=1e-5)
    with pytest.raises(InputError, match="is not finished"):
        enrol(server.path, [more])
    assert server.enrolment == first == enrol(server.path, [announced])
    (server.run_path / "model.safetensors").touch()
    assert len(enrol(server.path, [more]).clients) == 2
