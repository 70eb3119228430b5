"""The plain per-client PyTorch loop: in this process, or shared out among processes of one thread each.

python -m peers.plain_peer --rounds 3 --workers 2
"""

import multiprocessing
from collections.abc import Iterable
from multiprocessing.connection import Connection

import torch
from torch import Tensor

from peers import tasks, work


class Loop:
    """Trains clients one after the other and sums their clipped updates."""

    def __init__(self, settings: work.Settings) -> None:
        work.use_threads(settings)
        self.settings = settings
        self.inputs, self.labels = tasks.make_data(settings.task)
        self.trainer = work.LocalTrainer(
            settings.task, clip_norm=settings.clip_norm, learning_rate=settings.learning_rate
        )

    def total(self, weights: Tensor, round_number: int, places: Iterable[int]) -> Tensor:
        """The sum of the updates of the clients at these places of the round's cohort."""
        total = torch.zeros_like(weights)
        for place in places:
            client = self.settings.cohorts[round_number][place]
            order = self.settings.order(round_number, place)
            batches = tasks.batches(self.settings.task, self.inputs[client], self.labels[client], order)
            total += self.trainer.clipped_update(weights, batches)
        return total


def serve(connection: Connection, settings: work.Settings) -> None:
    """A worker process: a model, a round and places of its cohort come in, their sum goes out."""
    loop = Loop(settings)
    while (request := connection.recv()) is not None:
        weights, round_number, places = request
        connection.send(loop.total(torch.from_numpy(weights), round_number, places).numpy())


def main() -> None:
    """Runs the rounds."""
    settings = work.read_settings()
    loop = Loop(settings)
    weights = work.flatten(tasks.make_model(settings.task))
    report = work.Report(name=f"plain loop, {settings.workers} processes", settings=settings, initial=weights)
    generator = torch.Generator().manual_seed(tasks.SEED)

    context = multiprocessing.get_context("spawn")
    connections = []
    helpers = []
    for _ in range(settings.workers - 1):
        ours, theirs = context.Pipe()
        helpers.append(context.Process(target=serve, args=(theirs, settings), daemon=True))
        helpers[-1].start()
        connections.append(ours)

    for round_number, cohort in enumerate(settings.cohorts):
        report.round_begins()
        shares = [range(worker, len(cohort), settings.workers) for worker in range(settings.workers)]
        for connection, share in zip(connections, shares[1:], strict=True):
            connection.send((weights.numpy(), round_number, share))
        total = loop.total(weights, round_number, shares[0])
        for connection in connections:
            total += torch.from_numpy(connection.recv())
        weights = weights + settings.noised_mean(total, generator)
        report.round_ends(weights)
    report.finish()

    for connection, helper in zip(connections, helpers, strict=True):
        connection.send(None)
        helper.join()


if __name__ == "__main__":
    main()
