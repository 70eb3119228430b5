"""The integer mechanism of the secure sum without its masks: encode, noise shares, sum mod 2^32, decode.

Place: what the audit sends canaries through besides `releases/float_sums.py`. The same functions as a client of the
protocol calls (`secure/client.py`), in the same order. Keys, masks and messages are left out: masks cancel exactly, and
with them a cohort takes a hundred times as long. Clients vanish at the same stages of the same attempts as in
`training/releases/secure_sums.py`; whether a sum is unmasked, tried again or given up depends on their numbers alone,
so that it is known before anybody is trained. In a rotation everybody in the roster adds noise, also those who send
zero; there is one attempt, and a roster that is too small is given up.

Everybody is everybody's neighbour, in cohorts of any size (`every_size_complete`): a circle follows from the hash of a
signed roster, which there is none of here.

Besides the released sums there are those of a server that makes the most of what the noise was sized for. It knows the
noise that it adds itself, and the noise shares of as many colluders as are tolerated; and it loses as many clients as
are tolerated, so that of their noise nothing is in the sum either. What is left is the guaranteed shares and no more,
whoever really vanished. (Which ones does not matter: shares are independent and alike. Updates all stay, each is in a
coordinate of its own.) A sum that was charged and then lost is one that this server can unmask. Of a sum that is given
up before, and of an empty one, it sees noise of the planned variance: what a client that is alone, and sends nothing,
would add.

Guarantees (tests of the same name):
  same_as_the_protocol     the sums equal those of `secure_sum.SecureRelease`, to the last bit, with losses and without.
  the_server_is_left_with_the_planned_noise   no less, and hardly more, whatever the cohort and its losses.
"""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gdpfed.planning.plan import Plan
from gdpfed.planning.rotation import smallest_roster
from gdpfed.secure.discrete_gaussian import discrete_gaussian
from gdpfed.secure.encoding import PlannedSum, decode, encode, planned_sums
from gdpfed.secure.graph import topology
from gdpfed.secure.in_process import Stage
from gdpfed.secure.noise_shares import NoiseShare, Tolerance, noise_share
from gdpfed.secure.randomness import SimulatedRandomness
from gdpfed.secure.server import empty_sum, missing_noise
from gdpfed.secure.session import LARGEST_COHORT
from gdpfed.training.releases.secure_sums import MAX_ATTEMPTS, SERVER, vanishing
from gdpfed.training.rounds import IntArray, Released, TrainingState, Updates, cohort_sizes

__all__ = ["Course", "SeenByTheServer", "course_of", "every_size_complete", "integer_release"]

# Of a planned sum, and with the server's randomness: a sum mod 2^32.
LostSum = Callable[..., NDArray[np.uint32]]


def every_size_complete(*, dropout: float = 0.0, colluders: float = 0.0) -> Tolerance:
    """That of `secure_sum.SecureRelease`, but for circles."""
    return Tolerance(dropout_rate=dropout, colluding_fraction=colluders, complete_up_to=LARGEST_COHORT)


@dataclass(frozen=True, kw_only=True)
class Course:
    """How one sum of a round ended, in its last attempt: so many in the ``roster``, whose inputs ``arrived``.

    Nobody has arrived if the roster was empty, or if the sum was given up before it was charged. One that was charged
    and not ``unmasked`` is given up, too.
    """

    attempt: int
    roster: int
    arrived: tuple[int, ...] = ()
    unmasked: bool = False


def course_of(
    cohort: Sequence[int],
    *,
    tolerance: Tolerance,
    seed: int,
    round_number: int,
    smallest: int = 1,
    attempts: int = MAX_ATTEMPTS,
) -> Course:
    """Goes through the stages of `secure.in_process.InProcessSum`, attempt by attempt, counting; a roster below the
    ``smallest`` counts as an empty one."""
    for attempt in range(attempts):
        dropout = tolerance.dropout_rate
        vanish = vanishing(cohort, dropout=dropout, seed=seed, round_number=round_number, attempt=attempt)
        kept = {stage: [client for client in cohort if vanish.get(client, math.inf) > stage] for stage in Stage}
        roster = len(kept[Stage.KEYS])
        if roster < smallest:
            return Course(attempt=attempt, roster=0)
        shape = topology(roster, tolerance)
        if len(kept[Stage.INPUT]) < shape.smallest_survivors or len(kept[Stage.AGREEMENT]) < shape.quorum:
            continue
        # Everybody's shares are with everybody.
        unmasked = len(kept[Stage.REVEAL]) >= shape.threshold
        return Course(attempt=attempt, roster=roster, arrived=tuple(kept[Stage.INPUT]), unmasked=unmasked)
    return Course(attempt=attempts, roster=len(cohort))


@dataclass(frozen=True, kw_only=True, eq=False)
class SeenByTheServer(Released):
    """Also what a server that colludes with as many as are tolerated is left with, for each sum."""

    server_sums: list[Tensor]


@functools.lru_cache(maxsize=8)
def _planned_once(plan: Plan, num_params: int, tolerance: Tolerance) -> tuple[PlannedSum, ...]:
    """Thousands of populations have the same plan."""
    return tuple(planned_sums(plan, num_params=num_params, tolerance=tolerance))


def integer_release(
    plan: Plan,
    assignment: IntArray,
    updates: Updates,
    *,
    seed: int,
    num_params: int,
    tolerance: Tolerance | None = None,
    share_variance: Callable[[NoiseShare], int] = lambda share: share.variance,
    lost_sum: LostSum = empty_sum,
    zeros_add_noise: bool = True,
) -> Callable[[TrainingState, IntArray], SeenByTheServer]:
    """Releases the sums of one plan. Only controls change ``share_variance``, what a client makes of its share's size,
    ``lost_sum``, what is released where a sum is given up, and whether those who send zero add noise."""
    bearing = tolerance or every_size_complete()
    all_planned = _planned_once(plan, num_params, bearing)

    def release(state: TrainingState, clients: IntArray) -> SeenByTheServer:
        """One integer sum for each planned one."""
        sums = []
        for planned in all_planned:
            course = course_of(
                [int(client) for client in clients if assignment[client] in planned.groups],
                tolerance=bearing,
                seed=seed,
                round_number=state.round_number,
                # Anybody, but in a rotation.
                smallest=smallest_roster(plan, [plan.groups[number] for number in planned.groups]),
                attempts=1 if plan.is_rotation else MAX_ATTEMPTS,
            )
            sums.append(_Sum(planned, course, bearing, seed=seed, round_number=state.round_number))
        sum_of = {client: one for one in sums for client in one.course.arrived}
        sent_zero = set(sum_of)
        for chunk, moved in updates(state, np.array(sorted(sum_of), dtype=np.int64)):
            for client, row in zip(chunk.tolist(), moved, strict=True):
                one = sum_of[client]
                sent_zero.discard(client)
                values = encode(row.numpy(), one.planned.encoding(int(assignment[client])))
                one.contribute(client, values, variance=share_variance(one.share))
        if plan.is_rotation and zeros_add_noise:
            for client in sorted(sent_zero):
                one = sum_of[client]
                zero = np.zeros(one.planned.num_params, dtype=np.int64)
                one.contribute(client, zero, variance=share_variance(one.share))
        released = [one.released(lost_sum) for one in sums]
        return SeenByTheServer(
            sums=[torch.from_numpy(total) for total, _ in released],
            server_sums=[torch.from_numpy(seen) for _, seen in released],
            clients=clients,
            cohort=cohort_sizes(plan, assignment, clients),
        )

    return release


class _Sum:
    """One sum of one round, in the attempt that ends it."""

    def __init__(
        self, planned: PlannedSum, course: Course, tolerance: Tolerance, *, seed: int, round_number: int
    ) -> None:
        self.planned, self.course, self._tolerance = planned, course, tolerance
        self._randomness = functools.partial(
            SimulatedRandomness, seed=seed, round_number=round_number, place=planned.place, attempt=course.attempt
        )
        self._total = np.zeros(planned.num_params, dtype=np.uint32)
        self._seen = np.zeros(planned.num_params, dtype=np.uint32)
        self._hidden: frozenset[int] = frozenset()
        if course.arrived:
            self.share = noise_share(
                total_variance=planned.noise_variance,
                cohort=course.roster,
                tolerance=tolerance,
                num_params=planned.num_params,
            )
            to_hide = min(len(course.arrived), self.share.smallest_survivors) - self.share.colluders
            self._hidden = frozenset(course.arrived[:to_hide])

    def contribute(self, client: int, values: NDArray[np.int64], *, variance: int) -> None:
        """A client's update on the grid, and its share of the noise."""
        noise = discrete_gaussian(
            len(values), variance=variance, stream=self._randomness(client=client).stream("noise")
        )
        noisy = (values + noise).astype(np.uint32)
        self._total += noisy
        self._seen += noisy if client in self._hidden else values.astype(np.uint32)

    def released(self, lost_sum: LostSum) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """What everybody sees, and what the server does."""
        planned, course, randomness = self.planned, self.course, self._randomness(client=SERVER)
        if course.unmasked:
            self._total += missing_noise(
                planned,
                cohort=course.roster,
                arrived=len(course.arrived),
                tolerance=self._tolerance,
                randomness=randomness,
            )
        else:
            self._total = (lost_sum if course.roster else empty_sum)(planned, randomness=randomness)
        released = decode(self._total, unit=planned.unit)
        if not course.arrived:
            return released, released * math.sqrt(planned.noise_variance / planned.released_variance)
        return released, decode(self._seen, unit=planned.unit)
