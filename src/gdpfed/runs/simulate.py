"""Train a task under its plan, round by round; `training/clients/engines.py` says where the clients are trained.

Place: tasks -> plan -> rounds -> records. A simulation: all data in one place, noise from a seed.

Guarantees (tests of the same name):
  same_seed_same_bytes                records and model, for every number of workers.
  a_run_stays_on_its_kind_of_device   another would round otherwise: refused, and said in the records.
"""

import dataclasses
import json
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from gdpfed import streams
from gdpfed.errors import InputError
from gdpfed.ledger.book import Ledger
from gdpfed.planning.people import assign
from gdpfed.planning.plan import Plan
from gdpfed.planning.spent import spent_so_far
from gdpfed.privacy.budgets import Budgets
from gdpfed.runs.folder import OWN_DATA, RunFolder, rounds_in
from gdpfed.runs.ledgered import joined_run
from gdpfed.runs.link import LedgerLink
from gdpfed.runs.loop import Evaluation, Progress, Watcher, Work, run
from gdpfed.tasks.datasets import Dataset, load_dataset
from gdpfed.tasks.features import computed_once
from gdpfed.tasks.models import build_model, refuse_running_statistics
from gdpfed.tasks.partitions import label_mix, partition_dirichlet, partition_iid, partition_natural, skewed_by_budget
from gdpfed.tasks.task import Task, TrainingSettings
from gdpfed.training.clients.cohort import ClientData, CohortTrainer, LocalTraining, flat_parameters
from gdpfed.training.clients.engines import Engine
from gdpfed.training.releases.charged import ChargedRelease
from gdpfed.training.releases.float_sums import float_release
from gdpfed.training.rounds import IntArray, Release, TrainingState, Updates
from gdpfed.training.sampling import simulated, tossed

__all__ = ["Simulation", "charged_to", "dealt_groups", "dealt_order", "prepare", "run_simulation", "simulate"]

_EVALUATION_BATCH = 250


@dataclass(frozen=True, kw_only=True, eq=False)
class Simulation:
    """A model, simulated clients in groups, and a test set: what `work` makes rounds of."""

    plan: Plan
    assignment: IntArray
    model: nn.Module
    trainer: CohortTrainer
    test_inputs: Tensor
    test_labels: Tensor
    seed: int
    training: TrainingSettings
    # Taken now: whoever evaluates a model loads it into ``model``.
    initial: Tensor
    label_mix: NDArray[np.float64] | None = None

    def updates(self, state: TrainingState, clients: IntArray) -> Iterator[tuple[IntArray, Tensor]]:
        """Trains these clients."""
        return self.trainer.updates(state.parameters, clients, seed=self.seed, round_number=state.round_number)

    def release(self, assignment: IntArray, updates: Updates) -> Release:
        """Float sums, or secure ones where the task has them."""
        if not self.training.secure:
            return float_release(self.plan, assignment, updates, seed=self.seed)
        from gdpfed.training.releases.secure_sums import SecureRelease

        return SecureRelease(
            self.plan,
            assignment,
            updates,
            seed=self.seed,
            num_params=self.trainer.num_params,
            dropout=self.training.dropout,
            colluders=self.training.colluders,
        )

    def work(self) -> Work:
        """What the loop runs: every round on its own account. `charged_to` makes it go through a ledger."""
        return Work(
            plan=self.plan,
            initial=self.initial,
            num_clients=len(self.assignment),
            layer_sizes=self.trainer.layer_sizes,
            sample=simulated(self.plan, self.assignment, seed=self.seed),
            release=self.release(self.assignment, tossed(self.updates, self.plan, self.assignment, seed=self.seed)),
            spent=lambda rounds: spent_so_far(self.plan, rounds),
            evaluate=self.evaluate if len(self.test_labels) else None,
            evaluate_every=self.training.evaluate_every,
            named=lambda model: {name: value.detach() for name, value in self.load(model).named_parameters()},
            device=self.trainer.device,
        )

    def load(self, parameters: Tensor) -> nn.Module:
        """The model with these parameters."""
        nn.utils.vector_to_parameters(parameters, self.model.parameters())
        return self.model

    def evaluate(self, parameters: Tensor) -> Evaluation:
        """Accuracy and mean loss on the test set, in batches of a fixed size, so that workers change nothing."""
        model = self.load(parameters)

        def judge(start: int) -> tuple[NDArray[np.int64], float]:
            with torch.no_grad():
                inputs = self.test_inputs[start : start + _EVALUATION_BATCH]
                labels = self.test_labels[start : start + _EVALUATION_BATCH]
                logits = model(inputs)
                losses = nn.functional.cross_entropy(logits, labels, reduction="none").double()
                right = labels[logits.argmax(1) == labels]
                return np.bincount(right.numpy(), minlength=logits.shape[1]), float(losses.sum())

        results = self.trainer.map(judge, range(0, len(self.test_labels), _EVALUATION_BATCH))
        correct = np.sum([counts for counts, _ in results], axis=0)
        loss = math.fsum(total for _, total in results) / len(self.test_labels)
        return Evaluation(
            accuracy=100 * int(correct.sum()) / len(self.test_labels),
            loss=loss if math.isfinite(loss) else 1e300,
            by_budget=self._by_budget(correct),
        )

    def _by_budget(self, correct: NDArray[np.int64]) -> tuple[float, ...]:
        if self.label_mix is None:
            return ()
        there = np.bincount(self.test_labels.numpy(), minlength=len(correct))
        return tuple(float(value) for value in 100 * self.label_mix @ (correct / np.maximum(there, 1)))


def _members(dataset: Dataset, training: TrainingSettings, num_clients: int, seed: int) -> Sequence[IntArray]:
    generator = streams.generator(seed, "partition")
    if training.partition == "iid":
        return partition_iid(len(dataset.train_labels), num_clients, generator=generator)
    if training.partition == "dirichlet":
        return partition_dirichlet(
            dataset.train_labels,
            num_clients,
            concentration=training.concentration,
            min_size=training.min_examples,
            generator=generator,
        )
    if dataset.owners is None:
        raise InputError(f"expected a data set with owners for partition 'natural', got {dataset.name!r}: use 'iid'")
    return partition_natural(dataset.owners, num_clients, generator=generator)


def dealt_order(budgets: Budgets, seed: int) -> IntArray:
    """Whose budget each client has: its own, or dealt out at random where clients have no names."""
    if budgets.clients is not None:
        return np.arange(len(budgets), dtype=np.int64)
    return streams.generator(seed, "groups").permutation(len(budgets))


def _shuffled(budgets: Budgets, seed: int) -> Budgets:
    """The budgets as they are dealt out: groups must not follow the data's order."""
    if budgets.clients is not None:
        return budgets
    order = dealt_order(budgets, seed)
    return dataclasses.replace(budgets, epsilons=budgets.epsilons[order], deltas=budgets.deltas[order])


def dealt_groups(plan: Plan, budgets: Budgets, seed: int) -> IntArray:
    """Each simulated client's group."""
    return assign(plan, _shuffled(budgets, seed))


def prepare(
    task: Task,
    plan: Plan,
    *,
    seed: int,
    num_workers: int | None,
    data_dir: str | Path | None = None,
    chunk: int | None = None,
    engine: Engine | None = None,
) -> Simulation:
    """Loads the data, deals it out, builds the model."""
    dataset = load_dataset(task.training.dataset, data_dir=data_dir)
    sizes: dict[str, int] = {"num_classes": dataset.num_classes}
    if dataset.train_inputs.ndim == 4:
        sizes["channels"] = dataset.train_inputs.shape[1]
    if task.training.model_width is not None:
        sizes["width"] = task.training.model_width
    model = build_model(task.training.model, seed=seed, **sizes)
    refuse_running_statistics(model)
    dataset, model = computed_once(dataset, model)
    dataset = dataset.holding_out(task.training.validation)
    assignment = dealt_groups(plan, task.budgets, seed)
    members, mix = _members(dataset, task.training, len(task.budgets), seed), None
    if task.training.group_skew:
        epsilons = _shuffled(task.budgets, seed).epsilons
        dealt = streams.generator(seed, "partition", round_number=1)
        members = skewed_by_budget(
            members, dataset.train_labels, epsilons, skew=task.training.group_skew, generator=dealt
        )
        mix = label_mix(members, dataset.train_labels, epsilons, num_classes=dataset.num_classes)
    data = ClientData(
        inputs=torch.from_numpy(dataset.train_inputs), labels=torch.from_numpy(dataset.train_labels), members=members
    )
    local = LocalTraining(
        learning_rate=task.settings.learning_rate,
        learning_rate_decay=task.training.learning_rate_decay,
        momentum=task.training.momentum,
        local_steps=task.settings.local_steps,
        batch_size=task.training.batch_size,
    )
    return Simulation(
        plan=plan,
        assignment=assignment,
        model=model,
        trainer=CohortTrainer(model, data, local, num_workers=num_workers, chunk_clients=chunk, engine=engine),
        test_inputs=torch.from_numpy(dataset.test_inputs),
        test_labels=torch.from_numpy(dataset.test_labels),
        seed=seed,
        training=task.training,
        initial=flat_parameters(model),
        label_mix=mix,
    )


def simulate(
    folder: RunFolder,
    *,
    num_workers: int | None,
    data_dir: str | Path | None = None,
    watch: Watcher | None = None,
    chunk: int | None = None,
    engine: Engine | None = None,
) -> Evaluation:
    """Runs, or goes on with, a run to its end; returns the last evaluation. With a ledger, through it.

    ``engine`` says where; ``num_workers`` None takes all that it has. Neither changes the result.
    """
    if folder.task.training.dataset == OWN_DATA:
        raise InputError(f"{str(folder.path)!r} is a run of gdpfed.train: call that again, with this folder, to go on")
    torch.set_num_threads(1)
    simulation = prepare(
        folder.task,
        folder.plan,
        seed=folder.seed,
        num_workers=num_workers,
        data_dir=data_dir,
        chunk=chunk,
        engine=engine,
    )
    try:
        return run_simulation(folder, simulation, watch=watch)
    finally:
        simulation.trainer.close()


def run_simulation(folder: RunFolder, simulation: Simulation, *, watch: Watcher | None = None) -> Evaluation:
    """The rounds of a prepared simulation, in its folder; the last evaluation."""
    _check_device(folder, simulation.trainer.device)
    last: list[Progress] = []

    with _charged(folder, simulation) as work, _board(folder) as draw:

        def tell(progress: Progress) -> None:
            last[:] = [progress]
            draw(progress)
            if watch is not None:
                watch(progress)

        state = run(folder, work, watch=tell)
    evaluation = last[0].evaluation if last else None
    return evaluation or simulation.evaluate(state.model)


@contextmanager
def _charged(folder: RunFolder, simulation: Simulation) -> Iterator[Work]:
    """The simulation's work, through its folder's ledger where it has one."""
    work = simulation.work()
    if folder.ledger is None:
        yield work
        return
    with Ledger.open(folder.ledger.path) as ledger:
        order = dealt_order(folder.task.budgets, folder.seed)
        yield charged_to(ledger, folder.ledger, work, folder.task.budgets, order, simulation.assignment)


def charged_to(
    ledger: Ledger, link: LedgerLink, work: Work, budgets: Budgets, order: IntArray, assignment: IntArray
) -> Work:
    """The same work, every round of which is charged before it is released."""
    places = joined_run(ledger, link, work.plan, budgets, order=order, assignment=assignment)
    release = ChargedRelease(work.release, work.plan, assignment, ledger=ledger, run=link.run, places=places)
    return dataclasses.replace(work, release=release, spent=lambda _: release.spent(), close=release.close)


@contextmanager
def _board(folder: RunFolder) -> Iterator[Watcher]:
    """Writes what was evaluated for TensorBoard."""
    writer = folder.event_writer(rounds_in(folder.path / "records.jsonl"))

    def draw(progress: Progress) -> None:
        rounds = progress.state.round_number
        if progress.evaluation is not None and progress.epsilons is not None:
            writer.add_scalar("accuracy", progress.evaluation.accuracy, rounds)
            writer.add_scalar("loss", progress.evaluation.loss, rounds)
            for group, epsilon in zip(folder.plan.groups, progress.epsilons, strict=True):
                writer.add_scalar(f"epsilon_release/{group.name}", epsilon, rounds)

    try:
        yield draw
    finally:
        writer.close()


def _check_device(folder: RunFolder, device: str) -> None:
    """Raises InputError where rounds were trained on another kind of device: the rest would be another run's."""
    path = folder.path / "timing.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    trained = {json.loads(line).get("device", "cpu") for line in lines if line.endswith("}")}
    if others := sorted(trained - {device}):
        began = f"the device {others[0]!r}, on which {str(folder.path)!r} has trained so far"
        raise InputError(f"expected {began}, got {device!r}, which rounds otherwise: go on there, or start a new run")
