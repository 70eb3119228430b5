"""The sums of a round by the secure aggregation protocol: every message, every mask, every noise share.

Place: a `Release` of `training/rounds.py`. For each sum of the plan (one for each group, or one for all
if pooled) a server and its cohort's clients run the whole protocol in this process; some clients vanish at a random
stage. A sum that loses more clients than its noise was sized for is aborted and tried again with fresh keys and fresh
noise, up to five times, but not once its signatures were shown to the clients: that counts as a release. In a rotation
it is tried once, since another attempt would be another ask; who is asked and does not train sends zero, as everybody
else sends an update. A sum that is given up is released as noise alone, as that of an empty cohort is: zeros would tell
that somebody took part. The noise of an empty cohort is the server's, and so is what makes the variance the same for
all cohorts.

The noise is added in `secure/client.py` (`SecureClient.mask`), the server's in `secure/server.py` (`top_up`,
`empty_sum`).

A simulation: identities, keys, masks and noise come from addresses (seed, round, client, sum, attempt), so that a run
can be resumed, and is no private release.

Guarantees (tests of the same name):
  secure_equals_float_up_to_the_grid   without noise, for every method: less than one grid step for each client.
  secure_noise_matches_the_plan        with nobody lost, the variance of the released sums is the plan's.
  secure_runs_repeat                   the same seed gives the same bytes, also after a resume.
  what_is_given_up_is_noise            of the released variance, after a charge and after the last attempt alike.
"""

import functools
import hashlib
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from gdpfed import streams
from gdpfed.planning.plan import Plan
from gdpfed.planning.plan_file import plan_hash
from gdpfed.secure.client import SecureClient
from gdpfed.secure.encoding import PlannedSum, decode, noise_excess, planned_sums
from gdpfed.secure.in_process import InProcessSum, Stage
from gdpfed.secure.noise_shares import Tolerance
from gdpfed.secure.primitives import KEY_BYTES, signing_public
from gdpfed.secure.randomness import SimulatedRandomness
from gdpfed.secure.server import AbortedError, SecureServer, empty_sum
from gdpfed.secure.session import Directory, Session
from gdpfed.training import mechanism
from gdpfed.training.rounds import IntArray, Released, TrainingState, Updates, cohort_sizes

__all__ = [
    "MAX_ATTEMPTS", "SERVER", "SecureRelease", "decoded", "simulated_cohort", "simulated_identity", "vanishing",
]  # fmt: skip

MAX_ATTEMPTS = 5
# The server's place among the addresses of clients.
SERVER = 2**32


def vanishing(cohort: Iterable[int], *, dropout: float, seed: int, round_number: int, attempt: int) -> dict[int, Stage]:
    """Who falls silent in this attempt, and when."""
    silent: dict[int, Stage] = {}
    if dropout:
        for client in cohort:
            generator = streams.generator(seed, "dropout", round_number=round_number, client=client)
            coin, when = generator.random((MAX_ATTEMPTS, 2))[attempt]
            if coin < dropout:
                silent[client] = Stage(1 + int(when * len(Stage)))
    return silent


@functools.lru_cache(maxsize=2**16)
def simulated_identity(seed: int, client: int) -> tuple[bytes, bytes]:
    """A client's signing key and its public half: the same in every round."""
    private = SimulatedRandomness(seed=seed, round_number=0, client=client).stream("identity").take(KEY_BYTES)
    return private, signing_public(private)


def _address(session: Session, client: int, seed: int) -> SimulatedRandomness:
    return SimulatedRandomness(
        seed=seed, round_number=session.round_number, client=client, place=session.place, attempt=session.attempt
    )


def simulated_cohort(
    session: Session, planned: PlannedSum, groups: Mapping[int, int], *, tolerance: Tolerance, seed: int
) -> tuple[SecureServer, dict[int, SecureClient]]:
    """A server and its clients, whose ``groups`` these are."""
    server_identity, server_public = simulated_identity(seed, SERVER)
    directory = Directory(
        server=server_public, clients={client: simulated_identity(seed, client)[1] for client in groups}
    )
    clients = {
        client: SecureClient(
            session=session,
            planned=planned,
            group=group,
            client=client,
            identity=simulated_identity(seed, client)[0],
            directory=directory,
            tolerance=tolerance,
            randomness=_address(session, client, seed),
        )
        for client, group in groups.items()
    }
    server = SecureServer(
        session=session, invited=groups, identity=server_identity, directory=directory, tolerance=tolerance
    )
    return server, clients


class SecureRelease:
    """Releases the sums of one plan; ``dropout`` is both what happens to clients and what the noise is sized for."""

    def __init__(
        self,
        plan: Plan,
        assignment: IntArray,
        updates: Updates,
        *,
        seed: int,
        num_params: int,
        dropout: float = 0.0,
        colluders: float = 0.0,
    ) -> None:
        self._plan, self._assignment, self._updates, self._seed = plan, assignment, updates, seed
        self._tolerance = Tolerance(dropout_rate=dropout, colluding_fraction=colluders)
        self._dropout = dropout
        self._planned = planned_sums(plan, num_params=num_params, tolerance=self._tolerance)
        self._plan_hash = bytes.fromhex(plan_hash(plan))

    def __call__(self, state: TrainingState, clients: IntArray) -> Released:
        """Trains the clients, and runs a protocol for each sum."""
        totals: dict[int, NDArray[np.uint32]] = {}
        clipped = dropped = vanished = 0
        attempts = 1 if self._plan.is_rotation else MAX_ATTEMPTS
        for attempt in range(attempts):
            running: list[tuple[PlannedSum, Session, InProcessSum]] = []
            taking_part: list[int] = []
            for planned in self._planned:
                if planned.place in totals:
                    continue
                cohort = [int(client) for client in clients if self._assignment[client] in planned.groups]
                vanish = self._vanishing(cohort, state.round_number, attempt)
                vanished += len(vanish)
                taking_part += cohort
                session = self._session(state, planned, attempt)
                if sum(vanish.get(client) != Stage.KEYS for client in cohort) < planned.smallest_cohort:
                    totals[planned.place] = self._noise_alone(session, planned)
                    continue
                opened = self._opened(session, planned, cohort, vanish)
                if opened is not None:
                    running.append((planned, session, opened))
            sums = {group: opened for planned, _, opened in running for group in planned.groups}
            for chunk, changes in self._updates(state, np.array(sorted(taking_part), dtype=np.int64)):
                lengths = mechanism.norms(changes).tolist()
                for client, row, length in zip(chunk.tolist(), changes, lengths, strict=True):
                    group = int(self._assignment[client])
                    if attempt == 0:
                        dropped += not np.isfinite(length)
                        clipped += bool(np.isfinite(length) and length > self._plan.groups[group].clip_norm)
                    if group in sums:
                        sums[group].contribute(client, row.numpy())
            for _, _, opened in running:
                opened.contribute_zeros()
            for planned, session, opened in running:
                try:
                    totals[planned.place] = opened.release(planned, randomness=_address(session, SERVER, self._seed))
                except AbortedError:
                    if opened.is_charged:
                        totals[planned.place] = self._noise_alone(session, planned)
            if len(totals) == len(self._planned):
                break
        for planned in self._planned:
            if planned.place not in totals:
                totals[planned.place] = self._noise_alone(self._session(state, planned, attempts), planned)
        return Released(
            sums=decoded(self._planned, totals),
            clients=clients,
            cohort=cohort_sizes(self._plan, self._assignment, clients),
            clipped=None if self._plan.is_rotation or self._plan.normalised else clipped,
            dropped=None if self._plan.is_rotation else dropped,
            vanished=vanished,
            noise_excess=noise_excess(self._planned),
        )

    def _session(self, state: TrainingState, planned: PlannedSum, attempt: int) -> Session:
        return Session(
            plan_hash=self._plan_hash,
            model_hash=hashlib.sha256(state.parameters.numpy().tobytes()).digest(),
            round_number=state.round_number,
            attempt=attempt,
            place=planned.place,
            num_params=planned.num_params,
        )

    def _vanishing(self, cohort: Iterable[int], round_number: int, attempt: int) -> dict[int, Stage]:
        return vanishing(cohort, dropout=self._dropout, seed=self._seed, round_number=round_number, attempt=attempt)

    def _noise_alone(self, session: Session, planned: PlannedSum) -> NDArray[np.uint32]:
        return empty_sum(planned, randomness=_address(session, SERVER, self._seed))

    def _opened(
        self, session: Session, planned: PlannedSum, cohort: list[int], vanish: dict[int, Stage]
    ) -> InProcessSum | None:
        """A cohort that waits for its inputs, or None if it lost too many before."""
        groups = {client: int(self._assignment[client]) for client in cohort}
        server, clients = simulated_cohort(session, planned, groups, tolerance=self._tolerance, seed=self._seed)
        opened = InProcessSum(server, clients, vanish=vanish)
        try:
            opened.open()
        except AbortedError:
            return None
        return opened


def decoded(planned_sums: Sequence[PlannedSum], totals: Mapping[int, NDArray[np.uint32]]) -> list[torch.Tensor]:
    """Integer sums as the numbers that they stand for; zero for a sum that nobody could pay for."""
    return [
        torch.from_numpy(decode(totals[planned.place], unit=planned.unit))
        if planned.place in totals
        else torch.zeros(planned.num_params, dtype=torch.float64)
        for planned in planned_sums
    ]
