"""Auto beside adaptive clipping at the same budgets: python benchmarks/adaptive_clipping.py [--seeds 3] [--record FILE]

Adaptive clipping (Andrew et al. 2021, "Differentially private learning with adaptive clipping") is what other tools
offer against choosing a clip norm. Here it is carried over to clients with different budgets: a client sends one
coordinate more, +-1/2 for "my update was longer than the norm, or not", a fifth as heavy as the update. Update and bit
together have the norm that the plan's noise is sized for, so the update gives up half a percent of its length, and
every epsilon is the plan's own. The norm follows geometrically. All else is ours: pooled, PLD, the step that
`gdpfed plan --objective` would take, an average over a tenth of the rounds.

The constants (target, rate, weight of the bit) are those of a prototype that did well on FMNIST. Trained is
on FMNIST with the paper's budgets, rounds and participation, paired seeds. Needs torch,
and the data set: gdpfed data get fmnist.
"""

import argparse
import json
import math
import statistics
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch

from gdpfed.planning.methods import make_plan
from gdpfed.runs.simulate import prepare
from gdpfed.tasks.task import load_task
from gdpfed.training import mechanism
from gdpfed.training.rounds import TrainingState, initial_state, run_round
from gdpfed_reproduce.recipes import AUTO

MODELS = {"scattering features": "features", "the preset's CNN": "cnn"}
FIRST_NORMS = (0.01, 0.1, 1.0, 10.0)
# Of updates below the norm; how fast it follows; how heavy the bit is beside the update.
TARGET, RATE, BIT = 0.3, 1.5, 0.2
# What `gdpfed plan --objective` takes: so many times a round's signal-to-noise of a parameter, at most this.
STEP, LONGEST = 4.0, 4.5


@dataclass(frozen=True, kw_only=True)
class Job:
    """A run: adaptive clipping from ``first_norm``, or auto where there is none."""

    model: str
    first_norm: float | None
    seed: int


def trained(job: Job) -> float:
    """Test accuracy after the last round, in percent."""
    torch.set_num_threads(1)
    adapts = job.first_norm is not None
    task = AUTO[MODELS[job.model]].on(load_task("fmnist"), "pooled" if adapts else "auto", averaging=0.8 * adapts)
    plan = make_plan(task.budgets, task.settings)
    simulation = prepare(task, plan, seed=job.seed, num_workers=1)
    work = simulation.work()
    state = initial_state(work.initial, work.num_clients)
    try:
        if job.first_norm is None:
            for _ in range(plan.num_rounds):
                state, _ = run_round(
                    state, plan=plan, sample=work.sample, release=work.release, layer_sizes=work.layer_sizes
                )
            return simulation.evaluate(state.model).accuracy
        groups, num_params = plan.groups, len(work.initial)
        # One client's update and bit together are as long as the plan's noise is sized for.
        share = 1 / math.sqrt(1 + (BIT / 2) ** 2)
        weight = groups[0].weight / share
        signal_to_noise = 1 / (groups[0].weight * groups[0].noise_std)
        step = min(LONGEST, STEP * signal_to_noise / math.sqrt(num_params))
        norm, average = job.first_norm, work.initial.double()
        for round_number in range(plan.num_rounds):
            total = torch.zeros(num_params + 1, dtype=torch.float64)
            for clients, updates in simulation.updates(state, work.sample(state)):
                scales = torch.tensor([groups[place].scale for place in simulation.assignment[clients]])
                rows, lengths = mechanism.clip(updates.double() / norm, clip_norm=plan.clip_norm)
                total[:-1] += share * (scales.unsqueeze(1) * rows).sum(0)
                below = torch.where(lengths <= plan.clip_norm, 0.5, -0.5)
                total[-1] += share * BIT * float((scales * below).sum())
            total += mechanism.noise(
                num_params + 1, std=groups[0].noise_std, seed=job.seed, round_number=round_number, place=0
            )
            parameters = (state.parameters.double() + step * norm * weight * total[:-1]).float()
            newest = 0.2 / (1 - 0.8 ** (round_number + 1))
            average += newest * (parameters.double() - average)
            state = TrainingState(
                round_number=round_number + 1, parameters=parameters, participations=state.participations
            )
            fraction = 0.5 + weight * float(total[-1]) / BIT
            norm *= math.exp(-RATE * (min(1.0, max(0.0, fraction)) - TARGET))
        return simulation.evaluate(average.float()).accuracy
    finally:
        simulation.trainer.close()


def main() -> None:
    """Trains all, prints a table, keeps the accuracies."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--record", type=Path)
    asked = parser.parse_args()
    jobs = [
        Job(model=model, first_norm=first, seed=seed)
        for model in MODELS
        for first in (None, *FIRST_NORMS)
        for seed in range(1, asked.seeds + 1)
    ]
    found: dict[tuple[str, float | None], list[float]] = {}
    with ProcessPoolExecutor(asked.workers) as pool:
        for job, accuracy in zip(jobs, pool.map(trained, jobs), strict=True):
            found.setdefault((job.model, job.first_norm), []).append(accuracy)
            print(f"{job.model}, {_words(job.first_norm)}, seed {job.seed}: {accuracy:.2f}", flush=True)
    rows = [
        {"model": model, "method": _words(first), "accuracies": [round(one, 2) for one in accuracies]}
        for (model, first), accuracies in found.items()
    ]
    for (model, first), accuracies in found.items():
        print(f"{model}, {_words(first)}: {statistics.fmean(accuracies):.2f}")
    if asked.record is not None:
        asked.record.write_text(json.dumps({"dataset": "fmnist", "rows": rows}, indent=1) + "\n", encoding="utf-8")


def _words(first_norm: float | None) -> str:
    return "auto" if first_norm is None else f"adaptive clipping from {first_norm:g}"


if __name__ == "__main__":
    main()
