"""The server's run: sample, sum, charge, keep, publish, update, checkpoint; and again after a kill.

Place: in the ServerApp, over an `Exchange` that carries packets; no framework here. Planning, encoding, secure sums,
Top-k and the update are the simulator's functions, and the ledger is charged as `runs.ledgered` charges it:

    reserve     each group's attempt at the round: who cannot pay is left out (its number is the session's attempt)
    charge      durable, before signatures go out: from then on the sum can be unmasked
    keep        the unmasked sum, with the server's noise, on the disk
    publish     its hash in the ledger
    checkpoint  the model after the round

Killed at any point, the run goes on from its checkpoint: a sum that was kept is used as it is; one that was charged and
not kept is lost, stays spent, and is tried again as another attempt, with fresh keys and its own charge.

The sample is drawn from all enrolled clients, by the operating system's generator; who is offline is a dropout. Who was
sampled stands in the ledger and nowhere else: records hold the planned cohort.

Guarantees (tests of the same name):
  simulator_and_deployment_agree       in test mode, the same model to the last bit.
  killed_anywhere_no_round_is_released_twice   charges are at least the releases, and a published sum is used as it is.
  an_exhausted_group_is_left_out       the others go on.
  a_sum_that_is_given_up_is_noise      charged, kept and published as that of an empty cohort; no record tells.
"""

import dataclasses
import hashlib
import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from gdpfed.errors import InputError, PrivacyError
from gdpfed.files import sync_folder
from gdpfed.flower.server.ledger_mark import check_ledger_mark, write_ledger_mark
from gdpfed.flower.server.released import Kept, KeptSums
from gdpfed.flower.server.standings import Standings
from gdpfed.flower.server.sums import SumConversation, together
from gdpfed.flower.shared.events import Events, no_events
from gdpfed.flower.shared.homes import POPULATION, ServerHome, write_durably
from gdpfed.flower.shared.terms import Terms
from gdpfed.flower.shared.test_mode import SERVER, check_test_mode, randomness_for
from gdpfed.flower.shared.vectors import ModelShape
from gdpfed.flower.shared.wire import pack
from gdpfed.ledger.book import Charge, Ledger, publish
from gdpfed.ledger.charges import ExhaustedError
from gdpfed.planning.people import assign
from gdpfed.planning.plan_file import plan_hash, plan_to_toml
from gdpfed.planning.settings import PlanSettings
from gdpfed.runs.folder import RunFolder, create_run, open_run
from gdpfed.runs.ledgered import LedgerLink, joined_run
from gdpfed.runs.stamp import DEPLOYED, TESTED
from gdpfed.secure.encoding import PlannedSum, decode, planned_sums
from gdpfed.secure.server import SecureServer
from gdpfed.secure.session import Session
from gdpfed.tasks.task import Task, TrainingSettings
from gdpfed.training import mechanism
from gdpfed.training.aggregate import averaged, combine
from gdpfed.training.rounds import TrainingState, sparsified
from gdpfed.training.sampling import chosen_clients, sample_clients, system_coins

__all__ = ["Deployment", "Evaluate", "Fault", "Transport"]

# The model's parameters -> accuracy in per cent, and loss.
Evaluate = Callable[[NDArray[np.float32]], Mapping[str, float]]
Fault = Callable[[str, int], None]
IntArray = NDArray[np.int64]


class Transport(Protocol):
    """What carries packets."""

    def refresh(self) -> None:
        """Finds nodes that came, before a round."""
        ...

    def exchange(self, stage: str, packets: Mapping[int, bytes]) -> Iterable[tuple[int, bytes]]:
        """Sends to clients by number, and yields what comes back in time."""
        ...


@dataclass(kw_only=True, eq=False)
class _Attempt:
    """One attempt at a sum: the groups that take part, their charges, and who was sampled of them."""

    planned: PlannedSum
    charges: dict[str, Charge]
    sampled: dict[str, IntArray]

    @property
    def number(self) -> int:
        return max(charge.attempt.attempt for charge in self.charges.values())

    @property
    def attempts(self) -> dict[str, int]:
        return {group: charge.attempt.attempt for group, charge in self.charges.items()}


def _no_fault(point: str, round_number: int) -> None:
    del point, round_number


class Deployment:
    """One run of a server's home. Made once for each process; `run` goes on where the last one stopped."""

    def __init__(
        self,
        home: ServerHome,
        *,
        initial: NDArray[np.float32],
        shape: ModelShape,
        transport: Transport,
        standings: Standings,
        evaluate: Evaluate | None = None,
        fault: Fault = _no_fault,
        events: Events = no_events,
    ) -> None:
        self._events = events
        self._home, self._transport, self._evaluate, self._fault = home, transport, evaluate, fault
        self._settings = home.settings
        check_test_mode(self._settings.test_seed, is_allowed=True)
        self._identity, self._enrolment, self._plan = home.identity, home.enrolment, home.plan
        self._initial, self._shape = torch.from_numpy(initial.copy()).float(), shape
        if len(initial) != shape.num_params:
            raise InputError(f"expected {shape.num_params} parameters, got {len(initial)}")
        self._planned = planned_sums(self._plan, num_params=shape.num_params, tolerance=self._settings.tolerance)
        self._terms = Terms(
            run=home.run_name,
            plan=plan_to_toml(self._plan),
            dropout_rate=float(self._settings.dropout_rate),
            colluding_fraction=float(self._settings.colluding_fraction),
            complete_up_to=self._settings.complete_up_to,
            enrolment=self._enrolment.digest,
            num_params=shape.num_params,
            test_seed=self._settings.test_seed,
        )
        self._signed_terms = self._terms.signed(self._identity)
        self._assignment = assign(self._plan, self._enrolment.budgets)
        self._standings = standings

    def run(self) -> TrainingState:
        """Runs to the end of the plan, or until no group can pay."""
        link = LedgerLink(path=self._home.ledger_path, population=POPULATION, run=self._home.run_name)
        with Ledger.open(self._home.ledger_path) as ledger:
            # Before the ledger holds rounds for a run that cannot start.
            found = self._found(link)
            order = np.arange(len(self._assignment), dtype=np.int64)
            places = joined_run(
                ledger, link, self._plan, self._enrolment.budgets, order=order, assignment=self._assignment
            )
            folder = found or self._made(link)
            saved = folder.load_checkpoint()
            if saved is not None:
                check_ledger_mark(folder.path, ledger)
            state = saved or TrainingState(
                round_number=0, parameters=self._initial.clone(), participations=np.zeros(len(places), dtype=np.int64)
            )
            if len(state.parameters) != self._shape.num_params:
                raise InputError("the checkpoint is of another model: restore the model, or start another run")
            if folder.is_finished:
                self._home.log(f"run {self._home.run_name!r} is finished: set a plan for another")
                self._events("finished", rounds=state.round_number)
                return state
            run = ledger.state.run(self._home.run_name)
            while state.round_number < self._plan.num_rounds and run.is_open:
                started = time.perf_counter()
                self._events("begin", round=state.round_number)
                self._transport.refresh()
                try:
                    state, record = self._round(state, ledger, places, folder)
                except ExhaustedError as error:
                    self._home.log(f"the run ends: {error}")
                    break
                self._finish_round(state, record, folder, ledger, seconds=time.perf_counter() - started)
            ledger.close_run(self._home.run_name)
            self._fault("closed", state.round_number)
            tensors = torch.split(state.model, list(self._shape.sizes))
            folder.save_model(list(self._shape.names), [tensor.clone() for tensor in tensors])
            self._home.log(f"run {self._home.run_name!r} is finished after {state.round_number} rounds")
            self._events("finished", rounds=state.round_number)
        return state

    def _found(self, link: LedgerLink) -> RunFolder | None:
        """The folder of this run, if it has begun; another run's is refused."""
        path = self._home.run_path
        if not ((path / "run.toml").is_file() and (path / "versions.json").is_file()):
            return None
        folder = open_run(path)
        is_ours = folder.ledger is not None and folder.ledger.run == link.run
        if not is_ours or plan_hash(folder.plan) != plan_hash(self._plan):
            raise PrivacyError(f"{str(path)!r} is of another run or plan: set the plan again")
        self._check_terms(path)
        return folder

    def _made(self, link: LedgerLink) -> RunFolder:
        path = self._home.run_path
        test_seed = self._settings.test_seed
        plan = self._plan
        settings = PlanSettings(
            method=plan.method,
            num_rounds=plan.num_rounds,
            participation=sum(group.expected_cohort for group in plan.groups) / len(self._assignment),
            clip_norm=plan.clip_norm,
            accountant=plan.accountant,
            server_learning_rate=plan.server_learning_rate,
            averaging=plan.averaging,
            max_participations=plan.max_participations,
            clients_per_person=plan.clients_per_person,
        )
        training = TrainingSettings(
            # No data set has this name: a deployment's folder cannot be gone on with by the simulator.
            dataset="deployment",
            model="deployment",
            evaluate_every=self._settings.evaluate_every,
            secure=True,
            dropout=self._settings.dropout_rate,
            colluders=self._settings.colluding_fraction,
        )
        task = Task(
            title=self._home.run_name,
            budgets=self._enrolment.budgets,
            budgets_source="budgets.csv",
            settings=settings,
            training=training,
        )
        write_durably(self._terms_path(path), self._terms.encode())
        return create_run(
            path,
            task=task,
            plan=self._plan,
            seed=test_seed or 0,
            ledger=link,
            stamp=DEPLOYED if test_seed is None else TESTED,
        )

    def _terms_path(self, path: Path) -> Path:
        path.mkdir(parents=True, exist_ok=True)
        return path / "terms.json"

    def _check_terms(self, path: Path) -> None:
        """Nodes refuse a run whose terms change: better to stop than to release noise."""
        if self._terms_path(path).read_bytes() != self._terms.encode():
            raise PrivacyError(
                "the run began on other terms (tolerances, enrolment, plan, model): restore them, or start another run"
            )

    # One round.

    def _round(
        self, state: TrainingState, ledger: Ledger, places: IntArray, folder: RunFolder
    ) -> tuple[TrainingState, dict[str, Any]]:
        number = state.round_number
        kept_sums = KeptSums(folder.path, number)
        kept = {planned.place: kept_sums.find(planned.place) for planned in self._planned}
        results: dict[int, Kept] = {place: found for place, found in kept.items() if found is not None}
        sampled = self._sampled(ledger, places, number)
        stopped: set[int] = set()
        # After the last attempt nobody is asked any more: what an empty cohort releases is charged and released.
        for tried in range(self._settings.max_attempts + 1):
            missing = [
                planned for planned in self._planned if planned.place not in results and planned.place not in stopped
            ]
            if not missing:
                break
            attempts = self._reserved(ledger, number, missing, sampled, places)
            stopped |= {planned.place for planned in missing} - attempts.keys()
            if not attempts and not results:
                raise ExhaustedError(
                    f"no group of run {self._home.run_name!r} can pay for round {number}", rounds_left=0
                )
            self._fault("reserved", number)
            for place, made in self._attempted(state, attempts, ask=tried < self._settings.max_attempts):
                results[place] = made
                kept_sums.keep(place, made)
                self._fault("kept", number)
        self._publish(ledger, number, results)
        self._fault("published", number)
        return self._updated(state, results, ledger, places)

    def _sampled(self, ledger: Ledger, places: IntArray, number: int) -> IntArray:
        run = ledger.state.run(self._home.run_name)
        participations = run.participations[places].astype(np.int64)
        seed = self._settings.test_seed
        if seed is None:
            coins = system_coins(len(self._assignment))
            clients = chosen_clients(self._plan, self._assignment, participations, coins)
        else:
            clients = sample_clients(self._plan, self._assignment, participations, seed=seed, round_number=number)
        return clients[~run.population.has_left[places[clients]]]

    def _reserved(
        self, ledger: Ledger, number: int, missing: list[PlannedSum], sampled: IntArray, places: IntArray
    ) -> dict[int, _Attempt]:
        """An attempt at each sum that some group can pay for."""
        found: dict[int, _Attempt] = {}
        for planned in missing:
            attempt = _Attempt(planned=planned, charges={}, sampled={})
            for group in planned.groups:
                name = self._plan.groups[group].name
                try:
                    attempt.charges[name] = ledger.reserve(self._home.run_name, number, name)
                except ExhaustedError as error:
                    self._home.log(f"round {number}: {error}")
                    continue
                attempt.sampled[name] = sampled[self._assignment[sampled] == group]
            if attempt.charges:
                found[planned.place] = attempt
        self._places = places
        return found

    def _attempted(
        self, state: TrainingState, attempts: dict[int, _Attempt], *, ask: bool
    ) -> Iterable[tuple[int, Kept]]:
        """Runs the sums side by side; yields those that ended for good, and gives the others' reservations back."""
        model = state.parameters.numpy().astype("<f4").tobytes()
        conversations = {
            place: self._conversation(state.round_number, attempt, model, ask=ask)
            for place, attempt in attempts.items()
        }
        for place, result in together(conversations, self._transport.exchange):
            attempt = attempts[place]
            kind = "aborted" if result.total is None else "given up" if result.given_up or not ask else "released"
            facts = {"round": state.round_number, "groups": list(attempt.planned.groups), "attempt": attempt.number}
            self._events(kind, **facts, lost=result.vanished)
            if result.total is not None:
                self._fault("unmasked", state.round_number)
                yield place, Kept(total=result.total, attempts=attempt.attempts)
                continue
            for charge in attempt.charges.values():
                if charge.attempt.state == "reserved":
                    charge.abort("too few clients were left")
        self._standings.save()

    def _conversation(self, number: int, attempt: _Attempt, model: bytes, *, ask: bool) -> SumConversation:
        planned = attempt.planned
        session = Session(
            plan_hash=self._terms.digest,
            model_hash=hashlib.sha256(model).digest(),
            round_number=number,
            attempt=attempt.number,
            place=planned.place,
            num_params=planned.num_params,
        )
        invited = sorted(int(client) for clients in attempt.sampled.values() for client in clients) if ask else []
        server = SecureServer(
            session=session,
            invited=invited,
            identity=self._identity,
            directory=self._enrolment.directory,
            tolerance=self._settings.tolerance,
        )

        def charge() -> None:
            self._fault("charging", number)
            self._events("charged", round=number, groups=list(planned.groups), attempt=attempt.number)
            for name, reserved in attempt.charges.items():
                reserved.commit(self._places[attempt.sampled[name]])
            self._fault("charged", number)

        def keys(client: int) -> bytes:
            return pack("keys", self._signed_terms, session.encoded(), self._standings.shown_to(client))

        def standing(client: int, content: bytes) -> None:
            self._standings.take(client, content, nonce=session.digest())

        return SumConversation(
            planned=planned,
            session=session,
            server=server,
            invited=invited,
            model=model,
            keys=keys,
            charge=charge,
            standing=standing,
            randomness=randomness_for(session, client=SERVER, test_seed=self._settings.test_seed),
            log=self._home.log,
        )

    def _sums(self, results: Mapping[int, Kept]) -> list[torch.Tensor]:
        """As the simulator has them: zero for a sum whose groups cannot pay, as their spend tells everybody."""
        noisy = []
        for planned in self._planned:
            kept = results.get(planned.place)
            if kept is None:
                noisy.append(torch.zeros(planned.num_params, dtype=torch.float64))
            else:
                noisy.append(torch.from_numpy(decode(kept.total, unit=planned.unit)))
        return sparsified(self._plan, noisy)

    def _publish(self, ledger: Ledger, number: int, results: Mapping[int, Kept]) -> None:
        """Says in the ledger what left each sum; again after a kill, with the same hashes."""
        sums = self._sums(results)
        charges, hashes = [], []
        for planned, total in zip(self._planned, sums, strict=True):
            kept = results.get(planned.place)
            if kept is None:
                continue
            for name, attempt in kept.attempts.items():
                run = ledger.state.run(self._home.run_name)
                known = run.attempts_of(number, run.group_number(name))
                if not known or known[-1].attempt != attempt or known[-1].state not in ("charged", "published"):
                    found = f"{known[-1]} as {known[-1].state!r}" if known else f"no attempt at round {number}"
                    raise PrivacyError(
                        f"the ledger has {found}, a kept sum is of attempt {attempt} of {name!r}: ledger and run "
                        f"folder are of different times; restore both from one backup"
                    )
                charge = ledger.charge(self._home.run_name, number, name)
                charges.append(charge)
                hashes.append(hashlib.sha256(total.contiguous().numpy().tobytes()).hexdigest())
        if charges:
            publish(charges, *hashes)

    def _updated(
        self, state: TrainingState, results: Mapping[int, Kept], ledger: Ledger, places: IntArray
    ) -> tuple[TrainingState, dict[str, Any]]:
        update = combine(self._plan, self._sums(results), list(self._shape.sizes))
        run = ledger.state.run(self._home.run_name)
        parameters = (state.parameters.double() + update).float()
        following = TrainingState(
            round_number=state.round_number + 1,
            parameters=parameters,
            participations=run.participations[places].astype(np.int64),
            average=averaged(self._plan, state.average, parameters, round_number=state.round_number),
        )
        return following, {"update_norm": float(mechanism.norms(update.unsqueeze(0))[0])}

    def _finish_round(
        self, state: TrainingState, record: dict[str, Any], folder: RunFolder, ledger: Ledger, *, seconds: float
    ) -> None:
        spent = list(ledger.spent_by_group(ledger.state.run(self._home.run_name)).values())
        due = state.round_number % self._settings.evaluate_every == 0 or state.round_number == self._plan.num_rounds
        shown: dict[str, float] = {}
        if self._evaluate is not None and due:
            judged = self._evaluate(state.model.numpy().copy())
            shown = {name: _finite(judged[name], 0.0) for name in ("accuracy", "loss") if name in judged}
            folder.append(
                "records.jsonl",
                {
                    "round": state.round_number,
                    "accuracy": _finite(judged.get("accuracy", 0.0), 0.0),
                    "loss": _finite(judged.get("loss", 0.0), 1e300),
                    "epsilons": [None if math.isinf(value) else value for value in spent],
                    # What was planned: who took part is nobody's business.
                    "cohort": [round(group.expected_cohort) for group in self._plan.groups],
                    "clipped": 0,
                    "dropped": 0,
                    **record,
                },
            )
        self._events(
            "round", round=state.round_number - 1, epsilons=[_finite(value, 1e300) for value in spent], **shown
        )
        # No timing.jsonl as in a simulation: how long a round took tells how often it was tried.
        self._fault("recorded", state.round_number - 1)
        write_ledger_mark(folder.path, ledger)
        # Counts of participations would tell who was sampled, round by round: the ledger has them.
        folder.save_checkpoint(dataclasses.replace(state, participations=np.zeros_like(state.participations)))
        # Before the sums go, the checkpoint must be there to stay.
        sync_folder(folder.path)
        self._fault("checkpointed", state.round_number - 1)
        KeptSums(folder.path, state.round_number).forget()
        # Rounded up: what is printed is never less than what was spent.
        listed = ", ".join(f"{_rounded_up(value):.3f}" for value in spent)
        self._home.log(
            f"round {state.round_number} of {self._plan.num_rounds}: {seconds:.1f} s, epsilon spent {listed}"
        )


def _rounded_up(value: float) -> float:
    return math.ceil(value * 1000) / 1000 if math.isfinite(value) else value


def _finite(value: float, otherwise: float) -> float:
    return float(value) if math.isfinite(value) else otherwise
