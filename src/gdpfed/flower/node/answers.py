"""A node's side of a deployment: six answers, each after its own checks, and silence otherwise.

Place: in the ClientApp, under no framework: bytes in, bytes out. All that decides comes from the node's own home: its
budget, its key, the pinned server and enrolment, its ledger. `gdpfed.secure.client` does the cryptography and has its
own reasons to refuse. A refusal is an empty answer and a line in the node's log: to everybody else it is a dropout.

What a node checks before it gives a key, and again before it shares: the terms are signed by the pinned server and name
the pinned enrolment and its own model's size; the plan is what it claims, computed again here; its group follows from
the budgets that all clients signed; the whole plan, after all runs that it ever joined, keeps its budget. Before it
shares: it may send one more input, the session is later than all that it answered, and the roster has the one key that
this node has advertised and not used. Before its input leaves: the model has the hash of the session, its ledger is
not older than what it once signed, and the input is charged, durably. With its last answer it advertises the key of its
next session. If there may be none it says so, in as many bytes and after the same work: others than the server cannot
tell, and the server counts inputs itself.

In a rotation a node is asked in turn, as the public order says, and answers no other round. When its input is charged
and masked, and the session's state is gone, it tosses a coin (`coin.py`) in memory: it trains, or sends zero. Nothing
after the coin touches the disk or can be refused. The answer leaves at the same moment after the coin, with the same
length, the same rows in its ledger and the same files; no log has a word of it. One message is answered at a time,
whatever it is: how fast another is answered would tell whether a training runs.

Training cannot fail in a way that others see: an error, a wrong shape or NaNs count as an update of zero, with noise.

Guarantees (tests of the same name):
  a_plan_above_the_budget_is_refused       by the node alone, with a line in its log.
  a_different_model_is_refused             for one client: by that client.
  a_forged_roster_is_refused               by the node that gets it.
  a_broken_training_looks_like_any_other   its node answers, and its update is zero.
  a_restored_node_notices                  that it once was further, if the server shows what it signed.
  only_its_turn_is_answered                in a rotation: another round's message is refused, and so are rosters with
                                           others than those whose turn it is, or with too few of them.
  a_rotation_needs_its_moment              terms without a fixed moment of answering are refused, or with one that is
                                           sooner than the owner asks for.
  a_weaker_promise_is_refused              by a node whose owner asks for one against the server.
  a_key_is_used_once                       whoever asks for what, and when; a roster with another is refused.
  a_last_answer_looks_like_any_other       of a node that may send no more; it is in no roster: it would be a loss.
  nobody_is_answered_meanwhile             while an input waits for its moment all other messages wait, nonsense too.
  an_ask_has_one_coin                      whatever happens after it was tossed, there is no other for this session.
  errors_after_the_coin_look_like_zero     at the same moment, with the same length.
  a_coin_leaves_no_trace                   in answers, ledgers, sessions or logs; the moment of answering is the same.
  nothing_is_pinned_by_the_server          a node without a whole pin answers nothing, whatever is pinned of it.
"""

import functools
import hashlib
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gdpfed import streams
from gdpfed.errors import GdpfedError, InputError, PrivacyError
from gdpfed.flower.node.coin import hidden_update, next_moment, sleep_until, toss
from gdpfed.flower.node.node_home import NodeHome
from gdpfed.flower.node.own_ledger import JoinedRun, OwnLedger
from gdpfed.flower.node.saved_session import Saved, SavedSessions
from gdpfed.flower.shared.enrolment import Enrolment
from gdpfed.flower.shared.terms import Terms
from gdpfed.flower.shared.test_mode import check_test_mode, randomness_for
from gdpfed.flower.shared.wire import NONCE_BYTES, Standing, pack, unpack
from gdpfed.planning.people import assign
from gdpfed.planning.rotation import asked_positions, is_asked, public_order
from gdpfed.secure.client import SecureClient
from gdpfed.secure.client_state import OneTimeKey
from gdpfed.secure.encoding import PlannedSum, planned_sums
from gdpfed.secure.primitives import KEY_BYTES, signing_public
from gdpfed.secure.randomness import SystemRandomness
from gdpfed.secure.session import SESSION_BYTES, Directory, Session

__all__ = ["Node", "Trainer"]

Vector = NDArray[np.float32]
# (the model's parameters, the round) -> the trained parameters
Trainer = Callable[[Vector, int], NDArray[Any]]


class Node:
    """One node, for one message: what it reads of its home it reads once.

    ``node_id`` is the transport's number of it, ``num_params`` the size of its own model.
    """

    def __init__(self, home: NodeHome, *, node_id: int, num_params: int, train: Trainer) -> None:
        self._home = home
        self._node_id = node_id
        self._num_params = num_params
        self._train = train
        self._sessions = SavedSessions(home.sessions)

    def answer(self, stage: str, content: bytes) -> bytes:
        """The answer to a message of the server; empty if it is refused. Never raises: what it raised would be sent."""
        answers = {
            "announce": self._announce,
            "keys": self._keys,
            "shares": self._shares,
            "input": self._input,
            "agree": self._agree,
            "reveal": self._reveal,
        }
        try:
            with self._home.alone():
                if stage not in answers:
                    raise InputError("expected a known stage, got another")
                return answers[stage](content)
        except GdpfedError as error:
            self._home.log(f"refused {stage}: {error}", stage=stage)
        except Exception as error:  # a defect must not travel to the server as a trace of what is in memory
            self._home.log(f"failed at {stage}: {type(error).__name__}", stage=stage)
        return b""

    # announce

    def _announce(self, content: bytes) -> bytes:
        nonce, text = unpack(content, stage="announce", num_parts=2)
        if len(nonce) != NONCE_BYTES:
            raise InputError(f"expected a nonce of {NONCE_BYTES} bytes, got {len(nonce)}")
        # Never from the server's message: who else is in the sums is for the owner to look at, and to pin.
        if text.decode("utf-8", "replace") != self._enrolment.as_json():
            raise PrivacyError("the announced enrolment differs from the pinned one: if it is right, pin it with renew")
        with OwnLedger(self._home) as ledger:
            return pack("announce", self._standing(ledger, nonce).encode())

    def _standing(self, ledger: OwnLedger, nonce: bytes) -> Standing:
        return Standing(
            client=self._number, nonce=nonce, node=self._node_id, num_rows=ledger.num_rows, head=ledger.head
        ).signed_by(self._home.identity)

    @functools.cached_property
    def _number(self) -> int:
        number = self._enrolment.number_of(signing_public(self._home.identity))
        if number is None:
            raise PrivacyError("the pinned enrolment does not list this node's key")
        return number

    @functools.cached_property
    def _enrolment(self) -> Enrolment:
        enrolment = self._home.enrolment
        if enrolment is None:
            raise PrivacyError("no enrolment is pinned: pin the one that the operator gave you")
        if enrolment.server != self._home.server:
            raise PrivacyError("the pinned enrolment is not of the pinned server: pin it again")
        return enrolment

    # 1 keys

    def _keys(self, content: bytes) -> bytes:
        signed, witness = unpack(content, stage="keys", num_parts=2)
        terms = Terms.opened(signed, server=self._enrolment.server)
        self._check_terms(terms)
        with OwnLedger(self._home) as ledger:
            self._check_witness(witness, ledger)
            run = ledger.run(terms)
            if run is None:
                run = self._join(ledger, terms)
            ledger.check_budget(self._home.budget)
            advertised = self._next_advertisement(terms, run, ledger)
            return pack("keys", advertised, self._standing(ledger, terms.digest).encode())

    def _next_advertisement(self, terms: Terms, run: JoinedRun, ledger: OwnLedger) -> bytes:
        """Of the key of this node's next session: the one that waits for it, or a fresh one. Its last word, if it may
        send no more."""
        whose: dict[str, Any] = {
            "plan_hash": terms.digest,
            "client": self._number,
            "identity": self._home.identity,
        }
        waiting = self._sessions.next_key
        if waiting is None or waiting.advertised.plan_hash != terms.digest or ledger.has_used(waiting.private.public):
            waiting = OneTimeKey.made(SystemRandomness().stream("keys").take(KEY_BYTES), **whose)
            self._sessions.keep_next_key(waiting)
        last = OneTimeKey.last_word(**whose)
        try:
            # Since this session began its owner may have changed what it asks for.
            self._check_terms(terms)
            ledger.check_budget(self._home.budget)
            self._check_more(run, ledger)
        except PrivacyError:
            return last.encode()
        return waiting.advertised.encode()

    def _check_more(self, run: JoinedRun, ledger: OwnLedger) -> None:
        """Raises PrivacyError unless the run may have another input of this node."""
        ledger.check_input(run, self._home.budget)
        ledger.check_ask(run)
        ledger.check_later(run)

    def _check_terms(self, terms: Terms) -> None:
        # The plan is verified when the run is joined; what kind it is, is read each time.
        is_rotation = terms.verified_plan(is_known=True).is_rotation
        if (terms.answer_seconds is None) == is_rotation:
            raise PrivacyError("expected a fixed moment of answering (answer_seconds) in a rotation, and only there")
        budget = self._home.budget
        if budget.against == "server" and not is_rotation:
            raise PrivacyError(
                "the plan holds against models only, this node's owner asks for one that holds against the server: "
                "against in budget.toml"
            )
        if is_rotation and _answer_seconds(terms) < budget.answer_seconds:
            raise PrivacyError(
                f"answers after {terms.answer_seconds:g} s, this node's owner asks for {budget.answer_seconds:g} at "
                f"least: answer_seconds in budget.toml"
            )
        if terms.enrolment != self._enrolment.digest:
            raise PrivacyError("the terms name another enrolment than the pinned one: ask the operator, then pin it")
        if terms.num_params != self._num_params:
            raise PrivacyError(f"expected a model of {self._num_params} parameters, the terms say {terms.num_params}")
        check_test_mode(terms.test_seed, is_allowed=budget.allow_test_mode)
        stated, asked = terms.colluding_fraction, budget.colluding_fraction
        if stated < asked:
            raise PrivacyError(f"noise for a colluding fraction of {stated:g}, this node's owner asks for {asked:g}")
        stated, asked = terms.complete_up_to, budget.complete_up_to
        if stated < asked:
            raise PrivacyError(f"cohorts above {stated} are circles, the owner asks for a complete graph up to {asked}")

    def _check_witness(self, witness: bytes, ledger: OwnLedger) -> None:
        """The server shows what this node last signed; without it (or with an honest copy of less) nothing follows."""
        if not witness:
            return
        signed = Standing.decode(witness)
        if not signed.is_signed_by(self._enrolment.clients[self._number].identity):
            raise PrivacyError("the server shows a standing that this node did not sign")
        if signed.num_rows > ledger.num_rows:
            raise PrivacyError(
                f"this node's ledger has {ledger.num_rows} rows, and the node once signed that it had "
                f"{signed.num_rows}: its home was put back to an old copy; go on with the home that was last in use, "
                f"or enrol the node anew with what budget is left"
            )
        if not ledger.was(signed.num_rows, signed.head):
            raise PrivacyError(
                f"this node's ledger is not the one of which it signed row {signed.num_rows}: its home went on from "
                f"an old copy; enrol the node anew with what budget is left"
            )

    def _join(self, ledger: OwnLedger, terms: Terms) -> JoinedRun:
        plan = terms.verified_plan()
        if not plan.is_private:
            raise PrivacyError(f"{plan.method} has no privacy: this node's budget is finite")
        group = int(assign(plan, self._enrolment.budgets)[self._number])
        return ledger.join(terms, plan, group, self._home.budget)

    # 2 shares

    def _shares(self, content: bytes) -> bytes:
        signed, encoded, roster = unpack(content, stage="shares", num_parts=3)
        terms = Terms.opened(signed, server=self._enrolment.server)
        session = _session(encoded)
        if session.plan_hash != terms.digest or session.num_params != terms.num_params:
            raise PrivacyError("the session is not about these terms")
        self._check_terms(terms)
        with OwnLedger(self._home) as ledger:
            run = ledger.run(terms)
            if run is None:
                raise PrivacyError("expected the terms of a run that this node has joined: it gave no key for these")
            ledger.check_budget(self._home.budget)
            self._check_more(run, ledger)
            self._check_turn(terms, session, run)
            with self._sessions.claimed_key() as key:
                client = self._client(terms, session, run, key=key)
                answer = client.share(roster)
                ledger.begin(run, _position(session), key=key.private.public)
                # Only now: a message that is refused must not end the session that is under way, or use up the key.
                self._sessions.forget()
            self._keep(session, "input", signed, client)
            return pack("shares", answer, self._standing(ledger, session.digest()).encode())

    def _check_turn(self, terms: Terms, session: Session, run: JoinedRun) -> None:
        """In a rotation, raises PrivacyError unless it is this node's turn."""
        if not run.is_rotation:
            return
        plan = terms.verified_plan(is_known=True)
        groups = assign(plan, self._enrolment.budgets)
        order = public_order(np.flatnonzero(groups == run.group), seed=terms.rotation_seed).tolist()
        position = order.index(self._number)
        is_round = 0 <= session.round_number < plan.num_rounds
        if not (is_round and is_asked(plan, len(order), position=position, round_number=session.round_number)):
            raise PrivacyError(f"round {session.round_number} is not this node's turn")

    def _client(self, terms: Terms, session: Session, run: JoinedRun, *, key: OneTimeKey | None = None) -> SecureClient:
        return SecureClient(
            session=session,
            planned=_planned(terms, session, run),
            group=run.group,
            client=self._number,
            identity=self._home.identity,
            directory=self._directory(terms, session, run),
            tolerance=terms.tolerance,
            randomness=randomness_for(session, client=self._number, test_seed=terms.test_seed),
            key=key,
        )

    def _directory(self, terms: Terms, session: Session, run: JoinedRun) -> Directory:
        """Who may be in the roster: everybody who is enrolled, in a rotation those whose turn it is."""
        directory = self._enrolment.directory
        if not run.is_rotation:
            return directory
        plan = terms.verified_plan(is_known=True)
        orders = [
            public_order(np.flatnonzero(assign(plan, self._enrolment.budgets) == number), seed=terms.rotation_seed)
            for number in range(len(plan.groups))
        ]
        turns = {
            int(client)
            for order in orders
            for client in order[asked_positions(plan, len(order), round_number=session.round_number)]
        }
        clients = {client: key for client, key in directory.clients.items() if client in turns}
        return Directory(server=directory.server, clients=clients)

    def _keep(self, session: Session, stage: str, signed: bytes, client: SecureClient) -> None:
        saved = Saved(terms=signed, session=session.encoded(), client=client.save())
        self._sessions.keep(session.digest(), stage, saved)

    def _loaded(self, saved: Saved, ledger: OwnLedger) -> tuple[SecureClient, Session, JoinedRun]:
        terms = Terms.opened(saved.terms, server=self._enrolment.server)
        check_test_mode(terms.test_seed, is_allowed=self._home.budget.allow_test_mode)
        session = _session(saved.session)
        run = ledger.run(terms)
        if run is None or run.last != _position(session):
            raise PrivacyError("expected the session that this node's ledger has as its last")
        client = self._client(terms, session, run)
        client.load(saved.client)
        return client, session, run

    # 3 input

    def _input(self, content: bytes) -> bytes:
        digest, delivery, model, witness = unpack(content, stage="input", num_parts=4)
        with self._sessions.claimed(digest, "input") as saved:
            session = _session(saved.session)
            if hashlib.sha256(model).digest() != session.model_hash or len(model) != 4 * self._num_params:
                raise PrivacyError("the model is not the one that all clients of this session agreed on")
            parameters = np.frombuffer(model, dtype="<f4").astype(np.float32)
            with OwnLedger(self._home) as ledger:
                self._check_witness(witness, ledger)
                client, session, run = self._loaded(saved, ledger)
                # This node's share of the noise, and masks: clips, encodes and adds the update when it is there.
                masked = client.masked(delivery)
                ledger.send(run, _position(session), self._home.budget)
                self._keep(session, "agree", saved.terms, client)
            terms = Terms.opened(saved.terms, server=self._enrolment.server)
        # Charged, masked, and the state is gone: from here on nothing is refused or given back.

        def trained(*, is_logged: bool) -> bytes:
            return pack("input", masked(self._update(parameters, session.round_number, is_logged=is_logged)))

        if not run.is_rotation:
            return trained(is_logged=True)
        nothing = pack("input", masked(np.zeros(len(parameters))))
        seconds, rate = _answer_seconds(terms), run.event.sampling_rate
        # All that was done so far is the same for everybody.
        begun = time.monotonic()
        answer = hidden_update(
            functools.partial(trained, is_logged=False),
            says_yes=toss(rate) if terms.test_seed is None else self._test_coin(terms, session, rate),
            nothing=nothing,
            ready_at=begun + 0.75 * seconds,
        )
        sleep_until(next_moment(begun + seconds, every=seconds))
        return answer

    # 4 agree and 5 reveal: the client's own checks decide, and only what is revealed is recorded

    def _agree(self, content: bytes) -> bytes:
        digest, survivors = unpack(content, stage="agree", num_parts=2)
        with self._sessions.claimed(digest, "agree") as saved, OwnLedger(self._home) as ledger:
            client, session, _ = self._loaded(saved, ledger)
            answer = client.agree(survivors)
            self._keep(session, "reveal", saved.terms, client)
            return pack("agree", answer)

    def _reveal(self, content: bytes) -> bytes:
        digest, agreements = unpack(content, stage="reveal", num_parts=2)
        with self._sessions.claimed(digest, "reveal") as saved, OwnLedger(self._home) as ledger:
            client, session, run = self._loaded(saved, ledger)
            answer = client.reveal(agreements)
            ledger.reveal(run, _position(session))
            terms = Terms.opened(saved.terms, server=self._enrolment.server)
            try:
                advertised = self._next_advertisement(terms, run, ledger)
            except (GdpfedError, OSError):
                # The shares are recorded, and leave; for a key the server has to ask.
                advertised = b""
            return pack("reveal", answer, advertised, self._standing(ledger, session.digest()).encode())

    def _test_coin(self, terms: Terms, session: Session, rate: float) -> bool:
        """The simulator's."""
        check_test_mode(terms.test_seed, is_allowed=self._home.budget.allow_test_mode)
        coins = streams.generator(terms.test_seed or 0, "sample", round_number=session.round_number)
        return bool(coins.random(len(self._enrolment.clients))[self._number] < rate)

    def _update(self, parameters: Vector, round_number: int, *, is_logged: bool = True) -> NDArray[np.float64]:
        try:
            trained = np.asarray(self._train(parameters.copy(), round_number), dtype=np.float64)
            wrong = f"gave {trained.shape} parameters, not {parameters.shape}"
        except (Exception, SystemExit) as error:  # whatever the data does to the training must not be seen
            trained, wrong = np.empty(0), f"failed with {type(error).__name__}"
        if trained.shape != parameters.shape:
            if is_logged:
                self._home.log(f"training {wrong}: an update of zero is sent")
            return np.zeros(len(parameters), dtype=np.float64)
        return trained - parameters.astype(np.float64)


def _answer_seconds(terms: Terms) -> float:
    if terms.answer_seconds is None:
        raise PrivacyError("expected a fixed moment of answering in the terms of a rotation")
    return terms.answer_seconds


def _session(encoded: bytes) -> Session:
    if len(encoded) != SESSION_BYTES:
        raise InputError(f"expected a session of {SESSION_BYTES} bytes, got {len(encoded)}")
    return Session.decoded(encoded)


def _position(session: Session) -> tuple[int, int]:
    return session.round_number, session.attempt


def _planned(terms: Terms, session: Session, run: JoinedRun) -> PlannedSum:
    sums = planned_sums(terms.verified_plan(is_known=True), num_params=terms.num_params, tolerance=terms.tolerance)
    planned = next(planned for planned in sums if run.group in planned.groups)
    if planned.place != session.place:
        raise PrivacyError("the session is about a sum that this node's group is not part of")
    return planned
