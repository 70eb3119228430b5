"""The plain per-client PyTorch loop: in this process, or shared out among processes of one thread each.

python -m peers.plain_peer --rounds 3 --workers 2
"""

import multiprocessing
from collections.abc import Sequence
from multiprocessing.connection import Connection

import torch
from torch import Tensor

from peers import work


class Loop:
    """Trains clients one after the other and sums their clipped updates."""

    def __init__(self, settings: work.Settings) -> None:
        work.use_threads(settings)
        self.images, self.labels = work.make_data()
        self.trainer = work.LocalTrainer(clip_norm=settings.clip_norm)

    def total(self, weights: Tensor, clients: Sequence[int]) -> Tensor:
        """The sum of these clients' updates."""
        total = torch.zeros_like(weights)
        for client in clients:
            total += self.trainer.clipped_update(weights, self.images[client], self.labels[client])
        return total


def serve(connection: Connection, settings: work.Settings) -> None:
    """A worker process: a model and clients come in, their sum goes out."""
    loop = Loop(settings)
    while (request := connection.recv()) is not None:
        weights, clients = request
        connection.send(loop.total(torch.from_numpy(weights), clients).numpy())


def main() -> None:
    """Runs the rounds."""
    settings = work.read_settings()
    loop = Loop(settings)
    weights = work.flatten(work.make_model())
    report = work.Report(name=f"plain loop, {settings.workers} processes", settings=settings, initial=weights)
    generator = torch.Generator().manual_seed(work.SEED)

    context = multiprocessing.get_context("spawn")
    connections = []
    helpers = []
    for _ in range(settings.workers - 1):
        ours, theirs = context.Pipe()
        helpers.append(context.Process(target=serve, args=(theirs, settings), daemon=True))
        helpers[-1].start()
        connections.append(ours)

    for cohort in settings.cohorts:
        report.round_begins()
        shares = [cohort[worker :: settings.workers] for worker in range(settings.workers)]
        for connection, share in zip(connections, shares[1:], strict=True):
            connection.send((weights.numpy(), share))
        total = loop.total(weights, shares[0])
        for connection in connections:
            total += torch.from_numpy(connection.recv())
        weights = weights + work.noised_mean(total, noise_std=settings.noise_std, generator=generator)
        report.round_ends(weights)
    report.finish()

    for connection, helper in zip(connections, helpers, strict=True):
        connection.send(None)
        helper.join()


if __name__ == "__main__":
    main()
