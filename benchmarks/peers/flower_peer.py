# mypy: ignore-errors
# (Flower lives in an environment of its own, .venv-flower, where the type checker does not look.)
"""Flower's simulation of FMNIST: 6,000 virtual nodes, a client app that trains on its node's partition, actors of one
core each.

    .venv-flower/bin/python -m peers.flower_peer --rounds 3 --workers 2

Set up as fast as it gets: model and update are one flat array, an actor keeps its model and data between messages,
clients clip before they send, and the server pulls replies as they come. Nodes cannot be chosen by partition: the
cohorts that `--save` writes are those the nodes reported.
"""

import os
import tempfile
import time

import numpy as np
import torch

from peers import tasks, work

POLL_SECONDS = 0.05
# The one whose clients use all they have in every step: a node need not know the round.
TASK = tasks.TASKS["fmnist"]

# Nothing listens beyond the loopback interface, nothing is reported, nothing is installed.
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}


class Actor:
    """What a Ray actor keeps between messages."""

    data = None
    trainer = None

    @classmethod
    def clipped_update(cls, partition: int, weights: np.ndarray, clip_norm: float) -> np.ndarray:
        """One client's training."""
        if cls.trainer is None:
            torch.set_num_threads(1)
            cls.data = tasks.make_data(TASK)
            cls.trainer = work.LocalTrainer(TASK, clip_norm=clip_norm)
        images, labels = cls.data
        batches = tasks.batches(TASK, images[partition], labels[partition], None)
        return cls.trainer.clipped_update(torch.from_numpy(weights), batches).numpy()


def run(settings: work.Settings) -> None:
    """Runs the rounds."""
    from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import ServerApp
    from flwr.simulation import run_simulation

    client_app = ClientApp()
    server_app = ServerApp()
    clip_norm = settings.clip_norm
    # Imported by name in the actors: their state then lives in a module and not in a pickled copy of it.
    from peers.flower_peer import Actor as ActorByName

    @client_app.train()
    def train(message, context):
        partition = int(context.node_config["partition-id"])
        (weights,) = message.content["model"].to_numpy_ndarrays()
        update = ActorByName.clipped_update(partition, weights.copy(), clip_norm)
        content = {"update": ArrayRecord([update]), "metrics": MetricRecord({"partition": partition})}
        return Message(RecordDict(content), reply_to=message)

    initial = work.flatten(tasks.make_model(TASK))
    report = work.Report(name=f"Flower, {settings.workers} actors", settings=settings, initial=initial)
    generator = torch.Generator().manual_seed(tasks.SEED)
    chooser = np.random.default_rng(tasks.SEED)
    cohorts = []

    @server_app.main()
    def main(grid, context):  # noqa: ARG001
        while len(nodes := sorted(grid.get_node_ids())) < TASK.num_clients:
            time.sleep(0.1)
        weights = initial
        for _ in settings.cohorts:
            report.round_begins()
            chosen = chooser.choice(len(nodes), settings.task.clients, replace=False)
            content = RecordDict({"model": ArrayRecord([weights.numpy()]), "config": ConfigRecord({})})
            waiting = set(
                grid.push_messages([Message(content, dst_node_id=nodes[i], message_type="train") for i in chosen])
            )
            total = torch.zeros_like(weights)
            trained = []
            while waiting:
                for reply in grid.pull_messages(waiting):
                    if reply.has_error():
                        raise RuntimeError(f"a client failed: {reply.error.reason}")
                    waiting.discard(reply.metadata.reply_to_message_id)
                    total += torch.from_numpy(reply.content["update"].to_numpy_ndarrays()[0].copy())
                    trained.append(int(reply.content["metrics"]["partition"]))
                if waiting:
                    time.sleep(POLL_SECONDS)
            weights = weights + settings.noised_mean(total, generator)
            report.round_ends(weights)
            cohorts.append(trained)

    run_simulation(
        server_app=server_app,
        client_app=client_app,
        num_supernodes=TASK.num_clients,
        backend_config={
            "client_resources": {"num_cpus": 1, "num_gpus": 0},
            "init_args": {
                "num_cpus": settings.workers,
                "num_gpus": 0,
                "include_dashboard": False,
                "_node_ip_address": "127.0.0.1",
            },
        },
    )
    settings.cohorts = cohorts
    report.finish()


def main() -> None:
    """Keeps Flower's and Ray's files in a folder that goes away."""
    settings = work.read_settings()
    if settings.task.name != TASK.name:
        raise SystemExit(f"expected --task {TASK.name}, got {settings.task.name}")
    with tempfile.TemporaryDirectory(prefix="flwr-") as folder:
        os.environ.update(QUIET, FLWR_HOME=folder, RAY_TMPDIR=folder)
        run(settings)


if __name__ == "__main__":
    main()
