"""The server's run: the loop of `runs/loop.py` over a home's plan, ledger and nodes; and again after a kill.

Place: in the ServerApp. `secret_sample` draws who takes part, `flower_release.FlowerRelease` is the release, and the
rest of a round is the simulator's. Killed at any point, the run goes on from its checkpoint.

The sample is drawn from all enrolled clients, by the operating system's generator; who is offline is a dropout. In a
rotation there is nothing to draw: clients are asked in a public order, and toss their coins themselves. Who was
sampled stands in the ledger and nowhere else: records hold the planned cohort, checkpoints no counts, and there is no
timing.jsonl.

Guarantees (tests of the same name):
  simulator_and_deployment_agree       in test mode, the same model to the last bit.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gdpfed.errors import InputError, PrivacyError
from gdpfed.files import write_whole
from gdpfed.flower.server.events import EVENTS, Events, events_into
from gdpfed.flower.server.flower_release import Fault, FlowerRelease, HomeRun
from gdpfed.flower.server.keys_ahead import KeysAhead
from gdpfed.flower.server.recovery import KeptSums, Standings, check_ledger_mark
from gdpfed.flower.server.server_home import POPULATION, ServerHome
from gdpfed.flower.server.transport import GridTransport
from gdpfed.flower.server.waiting import Patience
from gdpfed.flower.shared.test_mode import check_test_mode, stop_here
from gdpfed.flower.shared.vectors import sizes_of, to_vector
from gdpfed.ledger.book import Ledger
from gdpfed.planning.plan_file import plan_hash
from gdpfed.planning.settings import PlanSettings
from gdpfed.privacy.rounding import rounded_up
from gdpfed.runs.folder import RunFolder, create_run, open_run
from gdpfed.runs.ledgered import joined_run
from gdpfed.runs.link import LedgerLink
from gdpfed.runs.loop import Evaluation, Progress, Work
from gdpfed.runs.loop import run as run_loop
from gdpfed.runs.stamp import DEPLOYED, TESTED
from gdpfed.tasks.task import Task
from gdpfed.tasks.training_settings import TrainingSettings
from gdpfed.training.rounds import IntArray, TrainingState
from gdpfed.training.sampling import asked_clients, chosen_clients, public_orders, sample_clients, system_coins

__all__ = ["Evaluate", "serve"]

# The model's parameters -> accuracy in per cent, and loss.
Evaluate = Callable[[NDArray[np.float32]], Mapping[str, float]]
_TERMS = "terms.json"


def serve(
    home: ServerHome, model: Any, grid: Any, *, evaluate: Evaluate | None = None, fault: Fault = stop_here
) -> TrainingState:
    """Runs, or goes on with, the run of a home, over Flower's Grid: to the end of its plan, or until no group can pay.

    ``model`` is what is trained, at its start; ``fault`` is called where a test may kill the process.
    """
    sizes = sizes_of(model)
    layer_sizes = list(sizes.values())
    run = HomeRun.read(home, num_params=sum(layer_sizes))
    check_test_mode(run.settings.test_seed, is_allowed=True)
    events = events_into(home.path / EVENTS, run=run.name)
    standings = Standings(home.path / "standings.json", run.enrolment, log=home.log)
    transport = GridTransport(
        grid=grid,
        enrolment=run.enrolment,
        settings=run.settings,
        patience=Patience(settings=run.settings, is_rotation=run.plan.is_rotation),
        take_standing=standings.take,
        log=home.log,
        events=events,
        # A node that came back may have lost the key that it gave.
        bound=lambda client: keys.forget(client),
    )
    keys = KeysAhead(
        terms=run.signed_terms,
        plan_hash=run.terms.digest,
        directory=run.enrolment.directory,
        exchange=transport.exchange,
        is_here=transport.is_here,
        shown_to=standings.shown_to,
        standing=standings.take,
        log=home.log,
        name=lambda client: run.enrolment.clients[client].name,
    )
    link = LedgerLink(path=home.ledger_path, population=POPULATION, run=run.name)
    with Ledger.open(home.ledger_path) as ledger:
        # Before the ledger holds rounds for a run that cannot start.
        folder = _found(run)
        order = np.arange(len(run.assignment), dtype=np.int64)
        places = joined_run(ledger, link, run.plan, run.enrolment.budgets, order=order, assignment=run.assignment)
        if folder is None:
            folder = _created(run, link)
        elif (saved := folder.load_checkpoint()) is not None:
            check_ledger_mark(folder.path, ledger)
            if len(saved.parameters) != sum(layer_sizes):
                raise InputError("the checkpoint is of another model: restore the model, or start another run")

        def ask_keys(number: int) -> None:
            staying = np.flatnonzero(~ledger.state.run(run.name).population.has_left[places])
            keys.ask(staying.tolist(), round_number=number)

        release = FlowerRelease(
            run=run,
            ledger=ledger,
            places=places,
            exchange=transport.exchange,
            keys=keys,
            ask_keys=ask_keys,
            standings=standings,
            fault=fault,
            events=events,
        )
        work = Work(
            plan=run.plan,
            initial=torch.from_numpy(to_vector(model).astype(np.float32)),
            num_clients=len(places),
            layer_sizes=layer_sizes,
            sample=functools.partial(_secret_sample, run, ledger, places, transport, ask_keys, events),
            release=release,
            spent=lambda _: tuple(ledger.spent_by_group(ledger.state.run(run.name)).values()),
            evaluate=None if evaluate is None else functools.partial(_evaluation, evaluate),
            evaluate_every=run.settings.evaluate_every,
            named=lambda model: {
                name: part.clone() for name, part in zip(sizes, torch.split(model, layer_sizes), strict=True)
            },
            close=lambda: ledger.close_run(run.name),
            fault=fault,
        )
        was_finished = folder.is_finished
        state = run_loop(folder, work, watch=functools.partial(_watch, run, folder, ledger, events))
        how = "was finished before: set a plan for another" if was_finished else "is finished"
        home.log(f"run {run.name!r} {how} ({state.round_number} rounds)")
        events("finished", rounds=state.round_number)
        return dataclasses.replace(state, participations=_participations(run, ledger, places))


def _participations(run: HomeRun, ledger: Ledger, places: IntArray) -> IntArray:
    """How often each client took part, by the ledger: lost attempts count too."""
    return ledger.state.run(run.name).participations[places].astype(np.int64)


def _secret_sample(
    run: HomeRun,
    ledger: Ledger,
    places: IntArray,
    transport: GridTransport,
    ask_keys: Callable[[int], None],
    events: Events,
    state: TrainingState,
) -> IntArray:
    """Coins of the operating system, or in a test those of the simulator; nobody who has left.

    In a rotation those whose turn it is, unless lost rounds have cost them all their asks. Keys are asked for before
    there is a sample: who is asked, and whether anybody is, does not depend on it.
    """
    events("begin", round=state.round_number)
    transport.refresh()
    ask_keys(state.round_number)
    participations, seed = _participations(run, ledger, places), run.settings.test_seed
    if run.plan.is_rotation:
        orders = public_orders(run.plan, run.assignment, seed=run.terms.rotation_seed)
        clients = asked_clients(run.plan, orders, round_number=state.round_number)
        clients = clients[participations[clients] < run.plan.num_releases]
    elif seed is None:
        clients = chosen_clients(run.plan, run.assignment, participations, system_coins(len(run.assignment)))
    else:
        clients = sample_clients(run.plan, run.assignment, participations, seed=seed, round_number=state.round_number)
    return clients[~ledger.state.run(run.name).population.has_left[places[clients]]]


def _evaluation(evaluate: Evaluate, model: torch.Tensor) -> Evaluation:
    judged = evaluate(model.numpy().copy())
    return Evaluation(accuracy=_finite(judged.get("accuracy", 0.0), 0.0), loss=_finite(judged.get("loss", 0.0), 1e300))


def _finite(value: float, otherwise: float) -> float:
    return float(value) if math.isfinite(value) else otherwise


def _watch(run: HomeRun, folder: RunFolder, ledger: Ledger, events: Events, progress: Progress) -> None:
    """After a checkpoint the kept sums may go; the operator is told."""
    KeptSums(folder.path, progress.state.round_number).forget()
    spent = ledger.spent_by_group(ledger.state.run(run.name)).values()
    found = progress.evaluation
    judged = {} if found is None else {"accuracy": found.accuracy, "loss": found.loss}
    epsilons = [_finite(value, 1e300) for value in spent]
    events("round", round=progress.record.round_number, epsilons=epsilons, **judged)
    listed = ", ".join(rounded_up(value, 3) for value in spent)
    where = f"round {progress.state.round_number} of {run.plan.num_rounds}"
    facts = {"round": progress.state.round_number, "seconds": round(progress.seconds, 3), "epsilons": epsilons}
    run.home.log(f"{where}: {progress.seconds:.1f} s, epsilon spent {listed}", **facts)


def _found(run: HomeRun) -> RunFolder | None:
    """The folder of this run, if it has begun; another run's is refused, and so are other terms."""
    path = run.home.run_path
    if not ((path / "run.toml").is_file() and (path / "versions.json").is_file()):
        return None
    folder = open_run(path)
    is_ours = folder.ledger is not None and folder.ledger.run == run.name
    if not is_ours or plan_hash(folder.plan) != plan_hash(run.plan):
        raise PrivacyError(f"{str(path)!r} is of another run or plan: set the plan again")
    # Nodes refuse a run whose terms change: better to stop than to release noise.
    if (path / _TERMS).read_bytes() != run.terms.encode():
        raise PrivacyError("the run began on other terms: restore settings, enrolment, plan, model, or start another")
    return folder


def _created(run: HomeRun, link: LedgerLink) -> RunFolder:
    plan, settings, test_seed = run.plan, run.settings, run.settings.test_seed
    task = Task(
        title=run.name,
        budgets=run.enrolment.budgets,
        budgets_source="budgets.csv",
        settings=PlanSettings(
            method=plan.method,
            num_rounds=plan.num_rounds,
            participation=sum(group.expected_cohort for group in plan.groups) / len(run.assignment),
            clip_norm=plan.clip_norm,
            normalised=plan.normalised or None,
            accountant=plan.accountant,
            server_learning_rate=plan.server_learning_rate,
            adaptive_step=plan.adaptive_step or None,
            averaging=plan.averaging,
            max_participations=plan.max_participations,
            against="server" if plan.is_rotation else "models",
            asks=plan.asks,
            trainings=min(plan.trainings, plan.num_releases) if plan.is_rotation else None,
            clients_per_person=plan.clients_per_person,
        ),
        training=TrainingSettings(
            # No data set has this name: a deployment's folder cannot be gone on with by the simulator.
            dataset="deployment",
            model="deployment",
            evaluate_every=settings.evaluate_every,
            secure=True,
            dropout=settings.dropout_rate,
            colluders=settings.colluding_fraction,
        ),
    )
    path = run.home.run_path
    path.mkdir(parents=True, exist_ok=True)
    write_whole(path / _TERMS, run.terms.encode(), private=True, durable=True)
    stamp = DEPLOYED if test_seed is None else TESTED
    return create_run(path, task=task, plan=plan, seed=test_seed or 0, ledger=link, stamp=stamp)
