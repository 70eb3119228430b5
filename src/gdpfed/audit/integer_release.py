"""The integer mechanism of the secure sum without its masks: encode, noise shares, sum mod 2^32, decode.

Place: what the audit sends canaries through besides `rounds.float_release`. The same functions as a client of the
protocol calls (`secure/client.py`), in the same order. Keys, masks and messages are left out: masks cancel exactly, and
with them a cohort takes a hundred times as long. Nobody drops out.

Guarantees (tests of the same name):
  same_as_the_protocol     the sums equal those of `secure_sum.SecureRelease`, to the last bit.
"""

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from gdpfed.planning.plan import Plan
from gdpfed.secure.discrete_gaussian import discrete_gaussian
from gdpfed.secure.encoding import PlannedSum, decode, encode, planned_sums
from gdpfed.secure.noise_shares import NoiseShare, Tolerance, noise_share
from gdpfed.secure.randomness import SimulatedRandomness
from gdpfed.secure.server import empty_sum, missing_noise
from gdpfed.training.rounds import Released, TrainingState, Updates, sparsified

__all__ = ["IntegerRelease"]

# The server's place among the addresses of clients, as in `secure_sum`.
_SERVER = 2**32

ShareVariance = Callable[[NoiseShare], int | None]


def _planned_variance(share: NoiseShare) -> int:
    return share.variance


class IntegerRelease:
    """Releases the sums of one plan. ``share_variance`` is what a client makes of its share's size; only a control
    changes it (None: no noise)."""

    def __init__(self, plan: Plan, *, num_params: int, share_variance: ShareVariance = _planned_variance) -> None:
        self._tolerance = Tolerance()
        self._planned = planned_sums(plan, num_params=num_params, tolerance=self._tolerance)
        self._share_variance = share_variance

    def __call__(
        self,
        state: TrainingState,
        *,
        plan: Plan,
        assignment: NDArray[np.int64],
        clients: NDArray[np.int64],
        updates: Updates,
        seed: int,
    ) -> Released:
        """One integer sum for each planned one."""
        totals = [np.zeros(planned.num_params, dtype=np.uint32) for planned in self._planned]
        cohorts = [
            [int(client) for client in clients if assignment[client] in planned.groups] for planned in self._planned
        ]
        of_group = {group: planned for planned in self._planned for group in planned.groups}
        for chunk, moved in updates(state.parameters, clients):
            for client, row in zip(chunk.tolist(), moved, strict=True):
                planned = of_group[int(assignment[client])]
                totals[planned.place] += self._contribution(
                    planned,
                    int(assignment[client]),
                    row.numpy(),
                    cohort=len(cohorts[planned.place]),
                    address=SimulatedRandomness(
                        seed=seed, round_number=state.round_number, client=client, place=planned.place
                    ),
                )
        for planned, cohort in zip(self._planned, cohorts, strict=True):
            address = SimulatedRandomness(
                seed=seed, round_number=state.round_number, client=_SERVER, place=planned.place
            )
            if not cohort:
                totals[planned.place] = empty_sum(planned, randomness=address)
            else:
                totals[planned.place] += missing_noise(
                    planned, cohort=len(cohort), arrived=len(cohort), tolerance=self._tolerance, randomness=address
                )
        sums = [
            torch.from_numpy(decode(total, unit=planned.unit))
            for planned, total in zip(self._planned, totals, strict=True)
        ]
        return Released(sums=sparsified(plan, sums), clipped=0, dropped=0)

    def _contribution(
        self,
        planned: PlannedSum,
        group: int,
        update: NDArray[np.float64],
        *,
        cohort: int,
        address: SimulatedRandomness,
    ) -> NDArray[np.uint32]:
        share = noise_share(
            total_variance=planned.noise_variance,
            cohort=cohort,
            tolerance=self._tolerance,
            num_params=planned.num_params,
        )
        values = encode(update, planned.encoding(group))
        variance = self._share_variance(share)
        if variance is not None:
            values += discrete_gaussian(len(values), variance=variance, stream=address.stream("noise"))
        return values.astype(np.uint32)
