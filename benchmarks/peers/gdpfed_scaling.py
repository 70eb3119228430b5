"""One point of gdpfed's growth: so many clients, so large a cohort, in a process of its own.

    python -m peers.gdpfed_scaling --clients 100000 --cohort 100

The sampler's own cohorts are trained. The 60,000 images are the same for every number of clients, so that what grows is
the simulator's; beyond 6,000 clients they share images, each with ten drawn at random.
"""

import argparse
import json
import time

import numpy as np

from gdpfed.training.clients.blocks import ClientData
from peers import tasks, work
from peers.gdpfed_peer import gdpfed_contestant, one_group


def main() -> None:
    """Prints a line of JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--clients", type=int, required=True)
    parser.add_argument("--cohort", type=int, required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    given = parser.parse_args()

    task = tasks.TASKS["fmnist"]
    images, labels = tasks.make_data(task)
    inputs, targets = images.flatten(0, 1), labels.flatten()
    places = np.random.default_rng(tasks.SEED).integers(0, len(targets), size=(given.clients, task.num_examples))
    data_memory = work.peak_memory_mb()
    began = time.perf_counter()
    plan = one_group(
        num_clients=given.clients,
        cohort=given.cohort,
        clip_norm=task.clip_norm,
        num_rounds=given.rounds + 1,
    )
    data = ClientData(inputs=inputs, labels=targets, members=tuple(places))
    state, one_round = gdpfed_contestant(task, plan, data, workers=given.workers)
    setup_seconds = time.perf_counter() - began

    seconds = []
    trained = []
    others = []
    neighbours = work.Neighbours()
    for _ in range(given.rounds + 1):
        neighbours.begin()
        began = time.perf_counter()
        state, record = one_round(state, None)
        seconds.append(time.perf_counter() - began)
        trained.append(sum(record.cohort))
        others.append(neighbours.cores_busy())
    line = {
        "clients": given.clients,
        "cohort": given.cohort,
        "setup_seconds": setup_seconds,
        "seconds_per_round": seconds[1:],
        "others_per_round": others[1:],
        "trained": trained[1:],
        "data_memory_mb": data_memory,
        "peak_memory_mb": work.peak_memory_mb(),
    }
    print(json.dumps(line))


if __name__ == "__main__":
    main()
