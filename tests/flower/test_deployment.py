"""Whole runs: the simulator's numbers, kills, groups that stop."""

import dataclasses
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import Message
from safetensors.torch import load_file
from torch import Tensor

from gdpfed.errors import InputError, PrivacyError
from gdpfed.flower.node.own_ledger import OwnLedger
from gdpfed.flower.operate.between_runs import set_plan
from gdpfed.flower.operate.progress import progress_in
from gdpfed.flower.server.events import EVENTS
from gdpfed.flower.server.keys_ahead import KeysAhead
from gdpfed.ledger.book import Ledger
from gdpfed.ledger.verify import verify_ledger
from gdpfed.planning.people import assign
from gdpfed.report.load import load_report
from gdpfed.runs.folder import open_run
from gdpfed.runs.simulate import simulate
from gdpfed.secure.in_process import Stage
from gdpfed.training.releases.secure_sums import SecureRelease
from gdpfed.training.rounds import IntArray, TrainingState, initial_state, run_round
from gdpfed.training.sampling import simulated as simulated_sample
from gdpfed.training.sampling import tossed
from tests.flower.federations import MODEL, NUM_PARAMS, SEED, Federation, moved, stage_of

pytestmark = pytest.mark.training

VECTOR = np.concatenate([part.ravel() for part in MODEL])


def simulated(federation: Federation, *, dropout: float, seed: int = SEED) -> tuple[TrainingState, SecureRelease]:
    """The same plan, seed and training in the simulator."""

    def updates(now: TrainingState, clients: IntArray) -> Iterator[tuple[IntArray, Tensor]]:
        start = now.parameters.numpy().astype(np.float64)
        rows = [moved(start, int(client), now.round_number) - start for client in clients]
        if rows:
            yield clients, torch.from_numpy(np.stack(rows))

    plan, groups = federation.plan, assign(federation.plan, federation.enrolment.budgets)
    release = SecureRelease(
        plan,
        groups,
        tossed(updates, plan, groups, seed=seed),
        seed=seed,
        num_params=NUM_PARAMS,
        dropout=dropout,
        colluders=federation.home.settings.colluding_fraction,
    )
    state = initial_state(torch.from_numpy(VECTOR), len(federation.numbers))
    for _ in range(federation.rounds):
        state, _ = run_round(
            state, plan=plan, sample=simulated_sample(plan, groups, seed=seed), release=release, layer_sizes=[12, 5]
        )
    return state, release


@pytest.mark.parametrize("method", ["gdpfed+", "dp-fedavg", "pooled", "auto"])
def test_simulator_and_deployment_agree(method: str, tmp_path: Path) -> None:
    federation = Federation(tmp_path, method=method, settings={"dropout_rate": 0.0})
    expected, _ = simulated(federation, dropout=0.0)
    deployed = federation.serve()
    assert torch.equal(deployed.parameters, expected.parameters)
    assert np.array_equal(deployed.participations, expected.participations)
    assert not torch.equal(deployed.parameters, torch.from_numpy(VECTOR))


@pytest.mark.parametrize(("method", "asks"), [("gdpfed+", 2), ("pooled", 3), ("dp-fedavg", 4), ("auto", 3)])
def test_simulator_and_deployment_agree_in_a_rotation(method: str, asks: int, tmp_path: Path) -> None:
    """Whom the server asks, and how every node's coin falls: the same model to the last bit."""
    settings = {"dropout_rate": 0.0, "input_seconds": 12.0, "answer_seconds": 0.8}
    federation = Federation(tmp_path, method=method, rounds=4, asks=asks, settings=settings)
    expected, _ = simulated(federation, dropout=0.0)
    deployed = federation.serve()
    assert torch.equal(deployed.parameters, expected.parameters)
    assert np.array_equal(deployed.participations, expected.participations)
    assert deployed.participations.tolist() == [asks] * 12
    folder = open_run(federation.home.run_path)
    assert folder.task.settings.against == "server"
    assert folder.task.settings.asks == asks
    verify_ledger(federation.home.ledger_path)
    with Ledger.read(federation.home.ledger_path) as ledger:
        (run,) = ledger.state.runs.values()
        spent = ledger.spent_by_group(run)
    assert list(spent.values()) == [group.epsilon_release for group in federation.plan.groups]


def test_a_rotation_survives_kills(tmp_path: Path) -> None:
    """Killed after a charge: the round is asked again, which costs those in it one of their asks, and never more."""
    settings = {"dropout_rate": 0.0, "input_seconds": 9.0, "answer_seconds": 0.3}
    federation = Federation(
        tmp_path, sizes=(4, 4), epsilons=(1.0, 4.0), rounds=4, asks=2, test_seed=None, settings=settings
    )
    killed: list[tuple[str, int]] = []

    def fault(point: str, number: int) -> None:
        if (point, number) in (("charged", 0), ("reserved", 2)) and (point, number) not in killed:
            killed.append((point, number))
            raise KeyboardInterrupt

    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            federation.serve(fault=fault)
    deployed = federation.serve(fault=fault)
    assert deployed.round_number == 4
    assert len(killed) == 2
    assert deployed.participations.max() == 2
    for number in federation.numbers:
        with OwnLedger(federation.node(number)) as ledger:
            (run,) = ledger.runs.values()
            assert run.is_rotation
            assert int(deployed.participations[number]) <= run.asked <= run.cap == 2
            assert ledger.precision == 0
    verify_ledger(federation.home.ledger_path)


def test_an_averaged_model_is_averaged(tmp_path: Path) -> None:
    """A plan with averaging: the simulator's average is what is evaluated and saved, also after a kill."""
    federation = Federation(tmp_path, sizes=(2, 2), epsilons=(1.0, 4.0), settings={"dropout_rate": 0.0})
    federation.plan = dataclasses.replace(federation.plan, averaging=0.5)
    set_plan(federation.home.path, federation.plan)
    expected, _ = simulated(federation, dropout=0.0)
    stopped_after(federation, 0)
    deployed = federation.serve()
    assert torch.equal(deployed.model, expected.model)
    assert not torch.equal(deployed.model, deployed.parameters)
    saved = load_file(federation.home.run_path / "model.safetensors")
    assert torch.equal(torch.cat([saved["array0"], saved["array1"]]), expected.model)


def test_simulator_and_deployment_agree_when_clients_vanish(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same clients fall silent at the same stages: the same sums abort, and are tried again.

    Deposits are forgotten, so that everybody is asked for a key before every attempt, and can fall silent then.
    """
    ask = KeysAhead.ask

    def ask_all(self: KeysAhead, clients: list[int], *, round_number: int) -> None:
        for client in clients:
            self.forget(client)
        ask(self, clients, round_number=round_number)

    monkeypatch.setattr(KeysAhead, "ask", ask_all)
    seed = 17
    federation = Federation(
        tmp_path,
        sizes=(6, 6),
        epsilons=(1.0, 4.0),
        participation=0.5,
        rounds=3,
        test_seed=seed,
        settings={"dropout_rate": 0.4},
    )
    expected, release = simulated(federation, dropout=0.4, seed=seed)
    stages = {"keys": Stage.KEYS, "shares": Stage.SHARES, "input": Stage.INPUT}
    stages |= {"agree": Stage.AGREEMENT, "reveal": Stage.REVEAL}
    silenced = set()

    def deliver(client: int, message: Message) -> bool:
        stage = stage_of(message)
        if stage == "announce":
            return True
        run, group = federation.ledger().state.run(federation.home.run_name), client // 6
        number = progress_in(federation.home.path / EVENTS).round_number
        tried = len(run.attempts.get((number, group), ()))
        # Keys are asked for before the attempt is in the ledger.
        vanishing = release._vanishing([client], number, tried if stage == "keys" else tried - 1)
        is_silent = client in vanishing and stages[stage] >= vanishing[client]
        silenced.update({stage} if is_silent else set())
        return not is_silent

    deployed = federation.serve(federation.grid(deliver=deliver))
    assert torch.equal(deployed.parameters, expected.parameters)
    assert len(silenced) >= 3
    assert any("aborted" in states for states in federation.states().values())


def test_a_sum_that_is_given_up_is_noise(tmp_path: Path) -> None:
    """Five attempts come to nothing: charged, kept and published as that of an empty cohort; no record tells."""

    def federation(name: str) -> Federation:
        return Federation(tmp_path / name, sizes=(3, 3), epsilons=(1.0, 4.0), rounds=2, cap=2)

    lost, empty = federation("lost"), federation("empty")
    silent = {"lost": "input", "empty": "keys"}
    for made in (lost, empty):
        stage = silent[made.root.name]
        made.serve(made.grid(deliver=lambda client, message, stage=stage: client >= 3 or stage_of(message) != stage))
    assert lost.states()[0, 0] == ["aborted"] * 5 + ["published"]
    assert empty.states()[0, 0] == ["published"]
    told = [made.home.run_path / "records.jsonl" for made in (lost, empty)]
    one, other = ([json.loads(line) for line in path.read_text().splitlines()] for path in told)
    assert [line.keys() for line in one] == [line.keys() for line in other]
    assert [line["epsilons"] for line in one] == [line["epsilons"] for line in other]
    assert {path.name for path in told[0].parent.iterdir()} == {path.name for path in told[1].parent.iterdir()}
    sizes = [(told[at].parent / "ledger_mark.json").stat().st_size for at in (0, 1)]
    assert sizes[0] == sizes[1]
    # It is noise: neither nothing nor what an empty cohort of the first attempt gives.
    assert not torch.equal(*(load_file(path.parent / "model.safetensors")["array0"] for path in told))


# Kills.


class Killed(BaseException):
    """Stands for the end of the process: nothing catches it."""


POINTS = ["reserved", "charging", "charged", "unmasked", "kept", "published", "recorded", "checkpointed"]


@pytest.mark.parametrize("point", POINTS)
def test_killed_anywhere_no_round_is_released_twice(point: str, tmp_path: Path) -> None:
    federation = Federation(tmp_path, sizes=(3, 3), epsilons=(1.0, 4.0), rounds=3)
    hits = []

    def fault(reached: str, number: int) -> None:
        # The second of the two groups, in the second round.
        if reached == point and number == 1:
            hits.append(number)
            if len(hits) == (2 if point in ("charging", "charged", "unmasked", "kept") else 1):
                raise Killed

    with pytest.raises(Killed):
        federation.serve(fault=fault)
    kept = {path.name: path.read_bytes() for path in (federation.home.run_path).glob("released-1-*.sum")}
    before = federation.states()
    state = federation.serve()

    lost = {"charging": 1, "charged": 2, "unmasked": 1}.get(point, 0)
    # Where both groups have lost a round, nobody can pay for the last.
    done = 2 if lost == 2 else 3
    assert state.round_number == done
    states = federation.states()
    for place, attempts in states.items():
        # One release at most, the last; every other attempt stays as it was.
        assert attempts.count("published") <= 1, (place, attempts)
        assert "published" not in attempts[:-1]
        assert attempts[: len(before.get(place, []))][:-1] == before.get(place, [])[:-1]
    charged = sum(state in ("charged", "published") for attempts in states.values() for state in attempts)
    published = sum(state == "published" for attempts in states.values() for state in attempts)
    assert charged >= published
    assert charged == published + lost
    # A group that lost a round stops one round earlier: nobody pays for more rounds than were planned.
    assert published == 6 - lost
    for name in kept:
        place = int(name.split("-")[2].removesuffix(".sum"))
        assert states[1, place] == [*before[1, place][:-1], "published"]
    assert verify_ledger(federation.home.ledger_path).largest_share <= 1
    assert [record.round_number for record in open_run(federation.home.run_path).records()] == [1, 2, 3][:done]
    run = federation.ledger().state.run(federation.home.run_name)
    assert max(run.charged) <= 3


def test_killed_at_its_very_end(tmp_path: Path) -> None:
    """Both groups lose a round, so that the run ends early; killed before the model is saved, it still ends."""
    federation = Federation(tmp_path, sizes=(2, 2), epsilons=(1.0, 4.0))
    points = iter(["charged", "charged", "closed"])
    waiting = [next(points)]

    def fault(reached: str, number: int) -> None:
        if reached == waiting[0] and number >= (waiting[0] == "closed"):
            waiting[0] = next(points, "")
            if reached == "closed" or waiting[0] == "closed":
                raise Killed

    for _ in range(2):
        with pytest.raises(Killed):
            federation.serve(fault=fault)
    assert not open_run(federation.home.run_path).is_finished
    state = federation.serve()
    assert state.round_number == 1
    assert open_run(federation.home.run_path).is_finished


def test_a_finished_run_stays_finished(tmp_path: Path) -> None:
    federation = Federation(tmp_path, sizes=(2, 2), epsilons=(1.0, 4.0), test_seed=None)
    first = federation.serve()
    rows = len(federation.ledger().store.rows)
    assert torch.equal(federation.serve().parameters, first.parameters)
    assert len(federation.ledger().store.rows) == rows


def test_an_exhausted_group_is_left_out(tmp_path: Path) -> None:
    """A client of the first group tightens its budget: its group stops, the other goes on."""
    federation = Federation(tmp_path, sizes=(3, 3), epsilons=(1.0, 4.0), rounds=3)

    def fault(reached: str, number: int) -> None:
        if reached == "checkpointed" and number == 0:
            raise Killed

    with pytest.raises(Killed):
        federation.serve(fault=fault)
    with Ledger.open(federation.home.ledger_path) as ledger:
        ledger.tighten("clients", ["0"], epsilon=0.7)
    assert federation.serve().round_number == 3
    states = federation.states()
    assert [states.get((number, 0)) for number in range(3)] == [["published"], None, None]
    assert [states.get((number, 1)) for number in range(3)] == [["published"]] * 3
    assert "0 more fit" in federation.server_log


def test_a_refusal_is_not_asked_away(tmp_path: Path) -> None:
    """A server whose whole home was put back asks for a round again: nodes that answered it refuse, and another attempt
    does not ask them."""
    federation = Federation(tmp_path, sizes=(12,), epsilons=(4.0,), participation=0.5, rounds=3, share=0.5, test_seed=7)
    home, copy = tmp_path / "server", tmp_path / "copy"

    def fault(reached: str, number: int) -> None:
        if (reached, number) == ("checkpointed", 0):
            shutil.copytree(home, copy)
        if (reached, number) == ("checkpointed", 1):
            raise Killed

    with pytest.raises(Killed):
        federation.serve(fault=fault)
    shutil.rmtree(home)
    shutil.copytree(copy, home)
    federation.serve()
    revealed = []
    for number in federation.numbers:
        with OwnLedger(federation.node(number)) as ledger:
            rows = ledger._store.rows
        revealed.append(sum(row.kind == "revealed" and row.content["round"] == 1 for row in rows))
    assert max(revealed) == 1
    assert federation.states()[1, 0] == ["aborted", "published"]
    assert "refused before" in federation.server_log


def test_a_run_stops_without_its_nodes(tmp_path: Path) -> None:
    """Rather than spend budgets on noise; and goes on when they are back."""
    federation = Federation(tmp_path, sizes=(2, 2), epsilons=(1.0, 4.0))
    grid = federation.grid()

    def fault(reached: str, number: int) -> None:
        if reached == "checkpointed" and number == 0:
            grid.offline = {100, 101, 102}

    with pytest.raises(InputError, match="expected 2 of 4 enrolled nodes online"):
        federation.serve(grid, fault=fault)
    assert set(federation.states()) == {(0, 0), (0, 1)}
    grid.offline = set()
    assert federation.serve(grid).round_number == 2


def test_a_run_keeps_its_terms(tmp_path: Path) -> None:
    federation = Federation(tmp_path, sizes=(2, 2), epsilons=(1.0, 4.0))

    def fault(reached: str, number: int) -> None:
        if reached == "checkpointed" and number == 0:
            raise Killed

    with pytest.raises(Killed):
        federation.serve(fault=fault)
    settings = federation.home.path / "settings.toml"
    before = settings.read_text()
    settings.write_text(before.replace("dropout_rate = 0.2", "dropout_rate = 0.3"))
    with pytest.raises(PrivacyError, match="began on other terms"):
        federation.serve()
    # What is the server's own business may change.
    settings.write_text(before.replace("max_attempts = 5", "max_attempts = 4"))
    assert federation.serve().round_number == 2


def stopped_after(federation: Federation, wanted: int, then: Callable[[], None] = lambda: None) -> None:
    """Serves until the checkpoint of a round."""

    def fault(reached: str, number: int) -> None:
        if reached == "checkpointed" and number == wanted:
            then()
            raise Killed

    with pytest.raises(Killed):
        federation.serve(fault=fault)


def test_an_old_ledger_is_noticed(tmp_path: Path) -> None:
    """Put back beside a newer run folder: its charges are less than what was released."""
    federation = Federation(tmp_path, sizes=(2, 2), epsilons=(1.0, 4.0), rounds=3)
    files = ["ledger", "ledger.journal"]
    stopped_after(federation, 0)
    old = {name: (federation.home.path / name).read_bytes() for name in files}
    stopped_after(federation, 1)
    new = {name: (federation.home.path / name).read_bytes() for name in files}
    for name, content in old.items():
        (federation.home.path / name).write_bytes(content)
    with pytest.raises(PrivacyError, match="put back to an old copy"):
        federation.serve()
    for name, content in new.items():
        (federation.home.path / name).write_bytes(content)
    assert federation.serve().round_number == 3


def test_a_kept_sum_without_its_charge_is_refused(tmp_path: Path) -> None:
    """A ledger from before the round, beside a sum that was unmasked in it."""
    federation = Federation(tmp_path, sizes=(2, 2), epsilons=(1.0, 4.0))
    files = [federation.home.path / name for name in ("ledger", "ledger.journal")]
    stopped_after(federation, 0)
    old = [path.read_bytes() for path in files]

    def fault(reached: str, number: int) -> None:
        if reached == "published" and number == 1:
            raise Killed

    with pytest.raises(Killed):
        federation.serve(fault=fault)
    for path, content in zip(files, old, strict=True):
        path.write_bytes(content)
    with pytest.raises(PrivacyError, match="of different times"):
        federation.serve()


def test_a_run_folder_does_not_tell_who_was_sampled(tmp_path: Path) -> None:
    """A run's folder is shown to others; the release epsilons need the samples secret."""
    federation = Federation(tmp_path, sizes=(2, 2), epsilons=(1.0, 4.0), participation=0.9)
    stopped_after(federation, 0)
    assert federation.ledger().state.run(federation.home.run_name).participations.sum() > 0
    saved = open_run(federation.home.run_path).load_checkpoint()
    assert saved is not None
    assert not saved.participations.any()
    # And the counts are not lost by it.
    state = federation.serve()
    run = federation.ledger().state.run(federation.home.run_name)
    assert np.array_equal(state.participations, run.participations)


def test_a_run_folder_reads_like_the_simulators(tmp_path: Path) -> None:
    federation = Federation(tmp_path, sizes=(2, 2), epsilons=(1.0, 4.0))
    federation.serve()
    run = open_run(federation.home.run_path)
    assert run.is_finished
    assert run.plan == federation.plan
    assert "not a private release" in run.stamp
    for record in run.records():
        # Who took part is in the ledger and nowhere else.
        assert record.cohort == tuple(round(group.expected_cohort) for group in federation.plan.groups)
    data = load_report([federation.home.run_path])
    assert data.methods[0].runs[0].records[-1].epsilons[0] <= 1.0
    with pytest.raises(InputError, match="deployment"):
        simulate(run, num_workers=1)
