"""`gdpfed audit --train`: canaries among the clients of a real training.

Place: over `runs/loop.py`, the simulator's own. Canaries join one group of the population, each by a fair
coin; sampled like everyone, they send ten times the clip norm along a random direction of their own instead of
training. The adversary looks at each released sum along each direction. Other clients' updates, and other canaries',
get in the way: that costs power, never soundness.

The plan is not made again for the larger population: rates and noise are what they are, and the claim does not depend
on the number of clients. In a rotation all canaries join: those outside are asked, and send zero.

Guarantees (tests of the same name):
  training_is_the_simulators       without canaries the model is that of the simulator, to the last bit.
  canaries_move_the_sums           the inside ones along their own direction, when sampled; the others not.
"""

import dataclasses
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gdpfed import streams
from gdpfed.audit.auditor import check_auditable
from gdpfed.audit.canaries import TOO_LONG, Observed, check_canaries, likelihood_ratios, observe_ideal, of_size, tossed
from gdpfed.audit.one_run import OneRunFinding, judge_one_run
from gdpfed.audit.privacy_curves import AuditedGroup, BoolArray
from gdpfed.errors import InputError
from gdpfed.planning.plan import Plan, SamplingKind
from gdpfed.planning.plan_file import plan_hash
from gdpfed.runs.loop import Evaluation, run
from gdpfed.runs.simulate import Simulation, prepare
from gdpfed.tasks.task import Task
from gdpfed.training.rounds import IntArray, Released, TrainingState, sparsified
from gdpfed.training.sampling import simulated
from gdpfed.training.sampling import tossed as tossed_by_clients

__all__ = ["TrainingAudit", "TrainingObserved", "audit_training", "train_with_canaries"]

_MOST_BYTES = 4 * 2**30
# Beyond the seeds of users, so that canaries share no stream with the training.
_CANARIES = 2**64


@dataclass(frozen=True, kw_only=True, eq=False)
class TrainingObserved(Observed):
    """The released sums along each canary's direction, which are all that the server has, too; and the model."""

    parameters: Tensor
    evaluation: Evaluation


@dataclass(frozen=True, kw_only=True)
class TrainingAudit:
    """What one training with canaries showed; ``tight`` is the same estimate of a faultless mechanism."""

    title: str
    method: str
    plan_hash: str
    sampling: SamplingKind
    group: str
    num_canaries: int
    num_inside: int
    num_rounds: int
    seed: int
    alpha: float
    delta: float
    accuracy: float
    findings: dict[str, OneRunFinding]
    tight: dict[str, OneRunFinding]
    seconds: float

    @property
    def contradicted(self) -> bool:
        """Whether any claim is false, with confidence 1 - alpha."""
        return any(finding.contradicts for finding in self.findings.values())

    def as_json(self) -> dict[str, Any]:
        """Ready for json.dumps."""
        content = asdict(self)
        for name in ("findings", "tight"):
            content[name] = {view: finding.as_json() for view, finding in getattr(self, name).items()}
        return {"contradicted": self.contradicted, **content}


def _directions(num_canaries: int, num_params: int, seed: int) -> Tensor:
    if num_canaries * num_params * 4 > _MOST_BYTES:
        raise InputError(
            f"expected canaries of at most {_MOST_BYTES // 2**30} GB, got {num_canaries} of {num_params:,} parameters: "
            f"use fewer canaries"
        )
    drawn = streams.generator(seed + _CANARIES, "noise").standard_normal((num_canaries, num_params), dtype=np.float32)
    drawn /= np.linalg.norm(drawn, axis=1, keepdims=True)
    return torch.from_numpy(drawn)


def _fair_coins(seed: int, num_canaries: int) -> BoolArray:
    return streams.generator(seed, "groups").random(num_canaries) < 0.5


def train_with_canaries(
    simulation: Simulation,
    *,
    place: int,
    num_canaries: int,
    watch: Callable[[int], None] = lambda _: None,
) -> TrainingObserved:
    """One whole training with canaries in group ``place``: the simulator's, with more clients, and a release whose
    sums are looked at along every canary's direction."""
    group, seed = simulation.plan.groups[place], simulation.seed
    num_clients = len(simulation.assignment)
    if simulation.plan.is_rotation and num_canaries:
        # Rosters are as large as the group.
        larger = of_size(simulation.plan, place, group.num_clients + num_canaries, others_stay=True)
        simulation = dataclasses.replace(simulation, plan=larger)
    plan = simulation.plan
    inside = _fair_coins(seed + _CANARIES, num_canaries)
    directions = _directions(num_canaries, simulation.trainer.num_params, seed)
    present = np.arange(num_canaries) if plan.is_rotation else np.flatnonzero(inside)
    assignment = np.concatenate([simulation.assignment, np.full(len(present), place, dtype=np.int64)])
    # Those outside toss coins that nobody uses; the server's view of them is of rounds they might have been in.
    audited = AuditedGroup(plan=plan, group_index=place, num_canaries=num_canaries, seed=seed + _CANARIES)
    asked = np.zeros((plan.num_rounds, num_canaries), dtype=np.bool_)
    taking_part = asked.copy() if plan.is_rotation else tossed(audited)
    taking_part[:, inside] = False
    sums = np.empty((plan.num_rounds, num_canaries))

    def updates(state: TrainingState, clients: IntArray) -> Iterator[tuple[IntArray, Tensor]]:
        yield from simulation.updates(state, clients[clients < num_clients])
        for client in clients[clients >= num_clients]:
            canary = int(present[client - num_clients])
            if plan.is_rotation:
                taking_part[state.round_number, canary] = True
            if inside[canary]:
                row = directions[canary].double() * (TOO_LONG * group.clip_norm)
                yield np.array([client], dtype=np.int64), row.unsqueeze(0)

    real = simulation.release(assignment, tossed_by_clients(updates, plan, assignment, seed=seed))

    def release(state: TrainingState, clients: IntArray) -> Released:
        released = real(state, clients)
        total = sparsified(plan, released.sums)[audited.sum_index]
        sums[state.round_number] = (directions @ total.float()).double().numpy() / group.noise_std
        canaries = released.clients[released.clients >= num_clients]
        known = asked if plan.is_rotation else taking_part
        known[state.round_number, present[canaries - num_clients]] = True
        return released

    work = dataclasses.replace(
        simulation.work(),
        num_clients=len(assignment),
        sample=simulated(plan, assignment, seed=seed),
        release=release,
        evaluate=None,
    )
    state = run(None, work, watch=lambda progress: watch(progress.state.round_number))
    return TrainingObserved(
        sums=sums,
        server_sums=sums,
        taking_part=taking_part,
        inside=inside,
        asked=asked if plan.is_rotation else None,
        parameters=state.parameters,
        evaluation=simulation.evaluate(state.model),
    )


def _judged(audited: AuditedGroup, seen: Observed, *, alpha: float) -> dict[str, OneRunFinding]:
    scores, claims = likelihood_ratios(seen, audited.group), audited.claims()
    each = alpha / len(claims)
    return {
        view: judge_one_run(scores[view], seen.inside, family, claim=claim, delta=audited.group.delta, alpha=each)
        for view, (family, claim) in claims.items()
    }


def audit_training(
    task: Task,
    plan: Plan,
    *,
    place: int,
    seed: int,
    num_canaries: int = 1_000,
    alpha: float = 1e-3,
    num_workers: int,
    data_dir: str | Path | None = None,
    watch: Callable[[int], None] = lambda _: None,
) -> TrainingAudit:
    """Trains ``task`` once, with canaries, and judges what was released."""
    check_auditable(plan, alpha=alpha)
    check_canaries(num_canaries, fewest=20)
    started = time.perf_counter()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    simulation = prepare(task, plan, seed=seed, num_workers=num_workers, data_dir=data_dir)
    try:
        observed = train_with_canaries(simulation, place=place, num_canaries=num_canaries, watch=watch)
    finally:
        simulation.trainer.close()
        torch.set_num_threads(threads)
    audited = AuditedGroup(plan=plan, group_index=place, num_canaries=num_canaries, seed=seed)
    # Orthogonal canaries, nobody else, exact noise.
    faultless = dataclasses.replace(audited, seed=seed + 2 * _CANARIES)
    ideal = observe_ideal(faultless, inside=_fair_coins(faultless.seed, num_canaries))
    return TrainingAudit(
        title=task.title,
        method=plan.method,
        plan_hash=plan_hash(plan),
        sampling=plan.sampling,
        group=audited.group.name,
        num_canaries=num_canaries,
        num_inside=int(observed.inside.sum()),
        num_rounds=plan.num_rounds,
        seed=seed,
        alpha=alpha,
        delta=audited.group.delta,
        accuracy=observed.evaluation.accuracy,
        findings=_judged(audited, observed, alpha=alpha),
        tight=_judged(audited, ideal, alpha=alpha),
        seconds=time.perf_counter() - started,
    )
