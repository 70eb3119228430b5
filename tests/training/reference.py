"""The round as the paper writes it: plain loops, one client after another.

The oracle of `gdpfed.training.rounds`, which is the same round made fast. Only the plan, the random streams, the choice
of batches and the form of a state are shared; training, clip, noise, Top-k, projection and update are written out
again, so one suite runs against both and a mistake in either shows. Never for speed.
"""

import copy
import math
from fractions import Fraction

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from gdpfed import streams
from gdpfed.errors import InputError
from gdpfed.planning.plan import Group, Plan
from gdpfed.planning.rotation import public_order
from gdpfed.training.adaptive_step import Step
from gdpfed.training.clients.blocks import ClientData, LocalTraining, local_batches
from gdpfed.training.rounds import RoundRecord, TrainingState

__all__ = ["reference_round"]

Vector = NDArray[np.float64]


def reference_round(
    state: TrainingState,
    *,
    plan: Plan,
    assignment: NDArray[np.int64],
    model: nn.Module,
    data: ClientData,
    local: LocalTraining,
    seed: int,
) -> tuple[TrainingState, RoundRecord]:
    """One round of Algorithm 1, or of what the plan makes of it."""
    if state.round_number >= plan.num_rounds:
        raise InputError(f"the plan has {plan.num_rounds} rounds, all of which were run: make a plan with more")
    num_params = len(state.parameters)
    sums = [np.zeros(num_params) for _ in plan.groups]
    cohort = [0] * len(plan.groups)
    participations = state.participations.copy()
    clipped = dropped = 0

    coins = streams.generator(seed, "sample", round_number=state.round_number).random(len(assignment))
    for client in range(len(assignment)):
        place = int(assignment[client])
        group = plan.groups[place]
        if plan.sampling == "rotation":
            if not _is_turn(plan, assignment, client, seed=seed, round_number=state.round_number):
                continue
            cohort[place] += 1
            participations[client] += 1
        if coins[client] >= group.sampling_rate:
            continue
        if plan.max_participations is not None and participations[client] >= plan.max_participations:
            continue
        update = _train_client(state, model, data, local, seed=seed, client=client)
        norm = _norm(update)
        if not math.isfinite(norm):
            update = np.zeros(num_params)
            dropped += 1
        elif norm > group.clip_norm or (plan.normalised and norm > 0):
            update = update / norm * group.clip_norm
            clipped += int(norm > group.clip_norm)
        sums[place] += group.scale * update
        if plan.sampling == "poisson":
            cohort[place] += 1
            participations[client] += 1

    update = plan.server_learning_rate * _released(plan, sums, model, seed=seed, round_number=state.round_number)
    step, update = _step(plan, state, update) if plan.adaptive_step else (None, update)
    parameters = (state.parameters.double() + torch.from_numpy(update)).float()
    average = None
    if plan.averaging > 0 and (step is None or step.found_in is not None):
        # Weights of all models so far, the newest's 1, and their sum.
        counted = state.round_number - (0 if step is None or step.found_in is None else step.found_in)
        older = sum(plan.averaging**age for age in range(1, counted + 1))
        past_average = np.zeros(num_params) if state.average is None else state.average.numpy()
        average = torch.from_numpy((parameters.double().numpy() + older * past_average) / (1 + older))
    following = TrainingState(
        round_number=state.round_number + 1,
        parameters=parameters,
        participations=participations,
        average=average,
        start=state.parameters if plan.adaptive_step and state.start is None else state.start,
        step=step,
    )
    record = RoundRecord(
        round_number=state.round_number,
        cohort=tuple(cohort),
        clipped=None if plan.sampling == "rotation" or plan.normalised else clipped,
        dropped=None if plan.sampling == "rotation" else dropped,
        update_norm=_norm(update),
    )
    return following, record


def _step(plan: Plan, state: TrainingState, update: Vector) -> tuple[Step, Vector]:
    """The server's step, and what it moves the model by: longer by the root of ten while updates go on from where the
    model began; once they turn back, by how much noise there may be; then longer while they go on from where it began,
    and shorter when they turn back to the averaged model."""
    model = state.parameters.double().numpy()
    origin = model if state.start is None else state.start.double().numpy()
    unit = max(1.0, math.sqrt(float(origin @ origin))) / plan.clip_norm
    if state.round_number == 0:
        return Step(length=0.1 * unit), 0.1 * unit * update
    assert state.step is not None
    last, moved, root = state.step, model - origin, math.sqrt(10)
    sums = plan.groups[:1] if plan.release == "pooled" else plan.groups
    variance = sum((group.weight * group.noise_std * plan.server_learning_rate) ** 2 for group in sums)

    def agreed(way: Vector) -> float:
        return float(update @ way) / math.sqrt(variance * float(way @ way)) if way.any() else 0.0

    z = agreed(moved)
    if last.found_in is not None:
        assert state.average is not None
        swing = agreed(model - state.average.numpy())
        change = (z - 5 if z > 5 else 0.0) + (swing + 5 if swing < -5 else 0.0)
        length = last.length * math.exp(math.tanh(change / 4) / 2)
        return Step(length=length, found_in=last.found_in), length * update
    if z >= 3 and last.length < 100 * unit:
        return Step(length=root * last.length, agreed=z), root * (moved + last.length * update) - moved
    if last.agreed is None and z > -3:
        return last, last.length * update
    if last.agreed is None:
        return Step(length=last.length / root), moved / root - moved
    turn = last.length
    if z < 0:
        turn = 10 ** (math.log10(last.length) - 0.5 + 0.5 * last.agreed / (last.agreed - z))
    way = state.round_number * turn
    length = min(way / 2, way * (last.agreed if last.agreed > 10 else 10) / plan.num_rounds)
    return Step(length=length, found_in=state.round_number), moved * length / last.length - moved


def _is_turn(plan: Plan, assignment: NDArray[np.int64], client: int, *, seed: int, round_number: int) -> bool:
    """Whether the arc of a round passes over the client: one of its copies, a whole circle apart, lies in it."""
    group = int(assignment[client])
    members = [other for other in range(len(assignment)) if assignment[other] == group]
    position, size = list(public_order(members, seed=seed)).index(client), len(members)
    assert plan.asks is not None
    begin = math.floor(Fraction(round_number * size * plan.asks, plan.num_rounds))
    end = math.floor(Fraction((round_number + 1) * size * plan.asks, plan.num_rounds))
    return any(begin <= position + turn * size < end for turn in range(plan.asks + 1))


def _train_client(
    state: TrainingState, model: nn.Module, data: ClientData, local: LocalTraining, *, seed: int, client: int
) -> Vector:
    """The client's own copy of the model, tau steps of SGD, and how far it has moved."""
    own = copy.deepcopy(model)
    nn.utils.vector_to_parameters(state.parameters.clone(), own.parameters())
    optimizer = torch.optim.SGD(own.parameters(), lr=local.rate(state.round_number), momentum=local.momentum)
    batches = local_batches(data.members[client], local, seed=seed, round_number=state.round_number, client=client)
    for batch in batches:
        chosen = torch.from_numpy(batch.copy())
        optimizer.zero_grad()
        nn.functional.cross_entropy(own(data.inputs[chosen]), data.labels[chosen]).backward()  # type: ignore[no-untyped-call]  # PyTorch
        optimizer.step()
    moved = nn.utils.parameters_to_vector(own.parameters()).detach().double() - state.parameters.double()
    return np.asarray(moved.numpy(), dtype=np.float64)


def _released(plan: Plan, sums: list[Vector], model: nn.Module, *, seed: int, round_number: int) -> Vector:
    """Noise on every released sum, Top-k, then the weighted sum."""
    if plan.release == "pooled":
        first = plan.groups[0]
        noise = _noise(plan, first, len(sums[0]), seed=seed, round_number=round_number, place=0)
        total: Vector = np.sum(sums, axis=0) + noise
        return first.weight * total
    strict, lax = np.zeros(len(sums[0])), np.zeros(len(sums[0]))
    for place, group in enumerate(plan.groups):
        noisy = sums[place] + _noise(plan, group, len(sums[place]), seed=seed, round_number=round_number, place=place)
        weighted = group.weight * _top(noisy, group.keep_fraction)
        if group.projected:
            strict += weighted
        else:
            lax += weighted
    if any(group.projected for group in plan.groups):
        strict = _projection(strict, lax, model)
    return lax + strict


def _noise(plan: Plan, group: Group, num_params: int, *, seed: int, round_number: int, place: int) -> Vector:
    """Gaussian, of std sigma_m C times the scale of the group's clients; with bands, the solution of C n = z."""
    if group.noise_multiplier == 0:
        return np.zeros(num_params)
    std = group.noise_multiplier * group.clip_norm * group.scale
    rounds = [round_number] if plan.bands is None else list(range(round_number + 1))
    drawn = np.array(
        [
            std * streams.generator(seed, "noise", round_number=number, client=place).standard_normal(num_params)
            for number in rounds
        ]
    )
    if plan.bands is None:
        return np.asarray(drawn[0])
    coefficients = [1.0]
    for step in range(1, plan.bands):
        coefficients.append(coefficients[-1] * (2 * step - 1) / (2 * step))
    length = math.sqrt(sum(value**2 for value in coefficients))
    matrix = sum(value / length * np.eye(round_number + 1, k=-step) for step, value in enumerate(coefficients))
    return np.asarray(np.linalg.solve(matrix, drawn)[-1])


def _top(values: Vector, keep_fraction: float) -> Vector:
    """The k largest magnitudes, of equal ones the first."""
    num_kept = max(1, round(keep_fraction * len(values)))
    kept = np.argsort(-np.abs(values), kind="stable")[:num_kept]
    result = np.zeros_like(values)
    result[kept] = values[kept]
    return result


def _projection(strict: Vector, lax: Vector, model: nn.Module) -> Vector:
    """PFA: in every layer, p <p, z> / ||p||^2."""
    result = np.zeros_like(strict)
    start = 0
    for parameter in model.parameters():
        layer = slice(start, start + parameter.numel())
        squared_length = np.sum(lax[layer] ** 2)
        if squared_length > 0:
            result[layer] = lax[layer] * np.sum(lax[layer] * strict[layer]) / squared_length
        start += parameter.numel()
    return result


def _norm(values: Vector) -> float:
    with np.errstate(over="ignore", invalid="ignore"):
        return float(np.sqrt(np.sum(values**2)))
