# mypy: ignore-errors
# (pfl lives in an environment of its own, .venv-pfl, where the type checker does not look.)
"""pfl-research: its simulated backend, federated averaging, its Gaussian mechanism applied centrally.

    .venv-pfl/bin/python -m peers.pfl_peer --rounds 3 --workers 2

Set up as fast as it gets: a client's tensors are handed over without a copy, its batch is the whole dataset (which
skips slicing) or a slice of what was put in the order of its steps, metrics are neither computed nor printed, and
workers have one thread each. pfl always evaluates in its first iteration; that is the warm-up.
"""

import contextlib
import functools
import os
import socket
import subprocess
import sys
import warnings

from peers import tasks, work

RANK = "PFL_WORKER_RANK"
ADDRESSES = "PFL_WORKER_ADDRESSES"


def start_other_workers(num_workers: int) -> list[subprocess.Popen]:
    """Makes this process worker 0; pfl reads these variables when it is imported."""
    with contextlib.ExitStack() as stack:
        ports = []
        for _ in range(num_workers):
            reserved = stack.enter_context(socket.socket())
            reserved.bind(("127.0.0.1", 0))
            ports.append(reserved.getsockname()[1])
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    os.environ[ADDRESSES] = ",".join(f"127.0.0.1:{port}" for port in ports)
    os.environ[RANK] = "0"
    command = [sys.executable, "-m", "peers.pfl_peer", *sys.argv[1:]]
    return [
        subprocess.Popen(command, env={**os.environ, RANK: str(rank)}, stdout=subprocess.DEVNULL)  # noqa: S603
        for rank in range(1, num_workers)
    ]


def run(settings: work.Settings) -> None:
    """Runs the rounds; with several workers, each of them calls this."""
    import numpy as np
    import torch
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.hyperparam import NNTrainHyperParams
    from pfl.metrics import Metrics
    from pfl.model.pytorch import PyTorchModel
    from pfl.privacy.gaussian_mechanism import GaussianMechanism
    from pfl.privacy.privacy_mechanism import CentrallyAppliedPrivacyMechanism

    warnings.filterwarnings("ignore", message="To copy construct from a tensor")
    work.use_threads(settings)
    task = settings.task
    np.random.seed(tasks.SEED)  # noqa: NPY002  (pfl draws its seeds from here, alike in all workers)

    class Module(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = tasks.make_model(task)
            self.criterion = torch.nn.CrossEntropyLoss()

        def loss(self, images, labels):
            return self.criterion(self.layers(images), labels)

        def metrics(self, images, labels):  # noqa: ARG002
            return {}

    module = Module()
    inputs, labels = tasks.make_data(task)
    # A user is a place of a round's cohort: one whose batch is all it has is a dataset from the start, the others' are
    # put in the order of their steps when they are asked.
    users = [(number, place) for number, cohort in enumerate(settings.cohorts) for place in range(len(cohort))]
    ready = [Dataset(each) for each in zip(inputs, labels, strict=True)] if task.is_fixed else []

    def make_dataset(user):
        number, place = users[user]
        client = settings.cohorts[number][place]
        if ready:
            return ready[client]
        return Dataset(tasks.in_order(inputs[client], labels[client], settings.order(number, place)))

    turns = iter(range(len(users)))
    training_data = FederatedDataset(make_dataset_fn=make_dataset, user_sampler=lambda: next(turns, 0))

    mechanism = GaussianMechanism(settings.clip_norm, settings.noise_std / settings.clip_norm)
    backend = SimulatedBackend(
        training_data=training_data,
        val_data=training_data,
        postprocessors=[CentrallyAppliedPrivacyMechanism(mechanism)],
    )
    model = PyTorchModel(
        model=module,
        local_optimizer_create=functools.partial(torch.optim.SGD, momentum=task.momentum),
        central_optimizer=torch.optim.SGD(module.parameters(), lr=1.0),
    )
    report = work.Report(
        name=f"pfl, {settings.workers} workers", settings=settings, initial=work.flatten(module.layers)
    )

    class Rounds(TrainingProcessCallback):
        def on_train_begin(self, *, model):  # noqa: ARG002
            report.round_begins()
            return Metrics()

        def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):  # noqa: ARG002
            report.round_ends(work.flatten(module.layers))
            report.round_begins()
            return False, Metrics()

    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=len(settings.cohorts),
            evaluation_frequency=len(settings.cohorts) + 1,
            train_cohort_size=task.clients,
            val_cohort_size=None,
        ),
        backend=backend,
        model=model,
        model_train_params=NNTrainHyperParams(
            local_num_epochs=task.local_steps if task.is_fixed else 1,
            local_learning_rate=settings.learning_rate,
            local_batch_size=None if task.is_fixed else task.batch_size,
        ),
        callbacks=[Rounds()],
        send_metrics_to_platform=False,
    )
    if os.environ.get(RANK, "0") == "0":
        report.finish()


def main() -> None:
    """Starts the other workers, if any, and joins in."""
    settings = work.read_settings()
    others = start_other_workers(settings.workers) if settings.workers > 1 and RANK not in os.environ else []
    try:
        run(settings)
    finally:
        for other in others:
            try:
                other.wait(timeout=20)
            except subprocess.TimeoutExpired:
                other.kill()


if __name__ == "__main__":
    main()
