"""The release of a deployment: reserve, ask the nodes for secure sums, charge, keep, publish.

Place: a `Release` of `training/rounds.py`, over an `Exchange` that carries packets; no framework here. Encoding and
decoding are the simulator's functions, and the ledger is charged as `training/releases/charged.py` charges it:

    reserve     each group's attempt at the round: who cannot pay is left out (its number is the session's attempt)
    charge      durable, before signatures go out: from then on the sum can be unmasked
    keep        the unmasked sum, with the server's noise, on the disk
    publish     its hash in the ledger

Killed at any point, the round is run again: a sum that was kept is used as it is; one that was charged and not kept is
lost, stays spent, and is tried again as another attempt, with fresh keys and its own charge.

Guarantees (tests of the same name):
  killed_anywhere_no_round_is_released_twice   charges are at least the releases, and a published sum is used as it is.
  an_exhausted_group_is_left_out       the others go on.
  a_refusal_is_not_asked_away          who would not share in an attempt is in no other of this round.
  a_sum_that_is_given_up_is_noise      charged, kept and published as that of an empty cohort; no record tells.
"""

import functools
import hashlib
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from gdpfed.errors import InputError, PrivacyError
from gdpfed.flower.server.deployment_settings import DeploymentSettings
from gdpfed.flower.server.events import Events
from gdpfed.flower.server.keys_ahead import KeysAhead
from gdpfed.flower.server.recovery import KeptSum, KeptSums, Standings, write_ledger_mark
from gdpfed.flower.server.server_home import ServerHome
from gdpfed.flower.server.sums import Exchange, SumConversation, together
from gdpfed.flower.shared.enrolment import Enrolment
from gdpfed.flower.shared.terms import Terms
from gdpfed.flower.shared.test_mode import randomness_for
from gdpfed.ledger.book import Charge, Ledger, publish
from gdpfed.ledger.charges import ExhaustedError
from gdpfed.planning.people import assign
from gdpfed.planning.plan import Plan
from gdpfed.planning.plan_file import plan_to_toml
from gdpfed.secure.encoding import PlannedSum, noise_excess, planned_sums
from gdpfed.secure.server import SecureServer
from gdpfed.secure.session import Session
from gdpfed.training.releases.charged import content_hash
from gdpfed.training.releases.secure_sums import SERVER, decoded
from gdpfed.training.rounds import IntArray, Released, TrainingState, cohort_sizes

__all__ = ["Fault", "FlowerRelease", "HomeRun"]

Fault = Callable[[str, int], None]


@dataclass(frozen=True, kw_only=True, eq=False)
class HomeRun:
    """The run of a server's home, read once: files that are edited meanwhile change nothing."""

    home: ServerHome
    name: str
    plan: Plan
    settings: DeploymentSettings
    identity: bytes
    enrolment: Enrolment
    assignment: IntArray
    terms: Terms

    @functools.cached_property
    def signed_terms(self) -> bytes:
        """As nodes get them."""
        return self.terms.signed(self.identity)

    @classmethod
    def read(cls, home: ServerHome, *, num_params: int) -> "HomeRun":
        """The run that the home is set for, with a model of so many parameters."""
        settings, plan, enrolment, name = home.settings, home.plan, home.enrolment, home.run_name
        if plan.is_rotation and settings.answer_seconds >= settings.input_seconds:
            raise InputError(
                f"expected input_seconds above answer_seconds={settings.answer_seconds:g}, got "
                f"{settings.input_seconds:g}: everybody would be lost; change settings.toml"
            )
        terms = Terms(
            run=name,
            plan=plan_to_toml(plan),
            dropout_rate=float(settings.dropout_rate),
            colluding_fraction=float(settings.colluding_fraction),
            complete_up_to=settings.complete_up_to,
            enrolment=enrolment.digest,
            num_params=num_params,
            test_seed=settings.test_seed,
            answer_seconds=float(settings.answer_seconds) if plan.is_rotation else None,
        )
        return cls(
            home=home,
            name=name,
            plan=plan,
            settings=settings,
            identity=home.identity,
            enrolment=enrolment,
            assignment=assign(plan, enrolment.budgets),
            terms=terms,
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class FlowerRelease:
    """The sums of a run. ``places`` is each client's place in the ledger's population.

    ``keys`` are the deposits of clients' keys. ``ask_keys`` asks, for a round, everybody who has none there.
    """

    run: HomeRun
    ledger: Ledger
    places: IntArray
    exchange: Exchange
    keys: KeysAhead
    ask_keys: Callable[[int], None]
    standings: Standings
    fault: Fault
    events: Events

    def __call__(self, state: TrainingState, clients: IntArray) -> Released:
        """One round; ExhaustedError if the run was closed, or no group can pay for it."""
        number, name = state.round_number, self.run.name
        settings, plan = self.run.settings, self.run.plan
        if not self.ledger.state.run(name).is_open:
            raise ExhaustedError(f"run {name!r} was closed after {number} rounds", rounds_left=0)
        # The place of a sum is its index.
        planned = planned_sums(plan, num_params=len(state.parameters), tolerance=self.run.terms.tolerance)
        places = range(len(planned))
        kept_sums = KeptSums(self.run.home.run_path, number)
        results = {place: kept for place in places if (kept := kept_sums.find(place)) is not None}
        model = state.parameters.numpy().astype("<f4").tobytes()
        stopped: set[int] = set()
        refused: set[int] = set()
        # In a rotation another attempt would be another ask of everybody.
        attempts = 1 if plan.is_rotation else settings.max_attempts
        # After the last attempt nobody is asked any more: what an empty cohort releases is charged and released.
        for tried in range(attempts + 1):
            missing = set(places) - results.keys() - stopped
            if not missing:
                break
            if 0 < tried < attempts:
                # Who has shared has used its key.
                self.ask_keys(number)
            opened: dict[int, SumConversation] = {}
            for place in sorted(missing):
                ask = tried < attempts
                if conversation := self._opened(number, planned[place], model, clients, refused, ask=ask):
                    opened[place] = conversation
            stopped |= missing - opened.keys()
            if not opened and not results:
                raise ExhaustedError(f"no group of run {name!r} can pay for round {number}", rounds_left=0)
            self.fault("reserved", number)
            for place, kept in self._ended(number, opened):
                results[place] = kept
                kept_sums.keep(place, kept)
                self.fault("kept", number)
            refused.update(*(conversation.refused for conversation in opened.values()))
        sums = decoded(planned, {place: kept.total for place, kept in results.items()})
        self._publish(number, [(kept, content_hash(sums[place])) for place, kept in results.items()])
        self.fault("published", number)
        write_ledger_mark(self.run.home.run_path, self.ledger)
        # Who took part stands in the ledger, and nowhere else. Who is asked in a rotation is no secret.
        planned_cohort = tuple(round(group.expected_cohort) for group in plan.groups)
        asked = cohort_sizes(plan, self.run.assignment, clients)
        return Released(
            sums=sums,
            clients=np.array([], dtype=np.int64),
            cohort=asked if plan.is_rotation else planned_cohort,
            noise_excess=noise_excess(planned),
        )

    def _opened(
        self, number: int, planned: PlannedSum, model: bytes, clients: IntArray, refused: Collection[int], *, ask: bool
    ) -> SumConversation | None:
        """An attempt at a sum, reserved for the groups that can pay; None if none can. Without ``ask``, of nobody.

        Who ``refused`` in an earlier attempt is not in this one's roster: a refusal is not asked away.
        """
        run = self.run
        charges: dict[str, Charge] = {}
        sampled: dict[str, IntArray] = {}
        for group in planned.groups:
            name = run.plan.groups[group].name
            try:
                charges[name] = self.ledger.reserve(run.name, number, name)
            except ExhaustedError as error:
                run.home.log(f"round {number}: {error}", round=number, group=name)
                continue
            sampled[name] = clients[run.assignment[clients] == group]
        if not charges:
            return None
        session = Session(
            plan_hash=run.terms.digest,
            model_hash=hashlib.sha256(model).digest(),
            round_number=number,
            attempt=max(charge.attempt.attempt for charge in charges.values()),
            place=planned.place,
            num_params=planned.num_params,
        )
        invited = sorted(int(client) for group in sampled.values() for client in group) if ask else []
        # Who is offline, as far as is known, would be a loss in the roster.
        keys = self.keys.taken_out([client for client in invited if client not in refused])
        for client in invited:
            if client not in keys:
                name = run.enrolment.clients[client].name
                why = "refused before" if client in refused else self.keys.why_not(client)
                text = f"keys: {name!r} {why}: the round goes on without it"
                run.home.log(text, round=number, stage="keys", client=name)
                # Who was there was asked, and its loss told then.
                if not self.keys.is_here(client):
                    self.events("dropped", stage="keys", client=name, why=why)

        def charge() -> None:
            self.fault("charging", number)
            self.events("charged", round=number, groups=list(planned.groups), attempt=session.attempt)
            for name, reserved in charges.items():
                reserved.commit(self.places[sampled[name]])
            self.fault("charged", number)

        return SumConversation(
            planned=planned,
            session=session,
            server=SecureServer(
                session=session,
                invited=invited,
                identity=run.identity,
                directory=run.enrolment.directory,
                tolerance=run.terms.tolerance,
            ),
            invited=invited,
            model=model,
            charges=charges,
            terms=run.signed_terms,
            keys=keys,
            witnesses={client: self.standings.shown_to(client) for client in keys},
            key_used=self.keys.answered,
            next_key=self.keys.take,
            charge=charge,
            standing=lambda client, content: self.standings.take(client, content, nonce=session.digest()),
            randomness=randomness_for(session, client=SERVER, test_seed=run.settings.test_seed),
            log=run.home.log,
            name=lambda client: run.enrolment.clients[client].name,
            is_given_up=not ask,
        )

    def _ended(self, number: int, opened: Mapping[int, SumConversation]) -> Iterable[tuple[int, KeptSum]]:
        """Runs the sums side by side; yields those that ended for good, and gives the others' reservations back."""
        for place, total in together(opened, self.exchange):
            ended = opened[place]
            kind = "aborted" if total is None else "given up" if ended.is_given_up else "released"
            facts = {"round": number, "groups": list(ended.planned.groups), "attempt": ended.session.attempt}
            self.events(kind, **facts, lost=ended.vanished)
            if total is not None:
                self.fault("unmasked", number)
                attempts = {group: charge.attempt.attempt for group, charge in ended.charges.items()}
                yield place, KeptSum(total=total, attempts=attempts)
                continue
            for charge in ended.charges.values():
                if charge.attempt.state == "reserved":
                    charge.abort("too few clients were left")
        self.standings.save()

    def _publish(self, number: int, results: Iterable[tuple[KeptSum, str]]) -> None:
        """Says in the ledger what left each sum; again after a kill, with the same hashes."""
        run = self.ledger.state.run(self.run.name)
        charges, hashes = [], []
        for kept, digest in results:
            for name, attempt in kept.attempts.items():
                known = run.attempts_of(number, run.group_number(name))
                if not known or known[-1].attempt != attempt or known[-1].state not in ("charged", "published"):
                    has = f"{known[-1]} as {known[-1].state!r}" if known else f"no attempt at round {number}"
                    raise PrivacyError(
                        f"the ledger has {has}, a kept sum is of attempt {attempt} of {name!r}: ledger and run folder "
                        f"are of different times; restore both from one backup"
                    )
                charges.append(self.ledger.charge(self.run.name, number, name))
                hashes.append(digest)
        if charges:
            publish(charges, *hashes)
