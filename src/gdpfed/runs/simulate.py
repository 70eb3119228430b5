"""Train a task under its plan, round by round; `training/clients/engines.py` says where the clients are trained.

Place: tasks -> plan -> rounds -> records. A simulation: all data in one place, noise from a seed.

Guarantees (tests of the same name):
  same_seed_same_bytes                records and model, for every number of workers.
  a_run_stays_on_its_kind_of_device   another would round otherwise: refused, and said in the records.
"""

import dataclasses
import functools
import importlib.util
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from gdpfed import streams
from gdpfed.config import imported, is_reference
from gdpfed.errors import InputError, MissingExtraError
from gdpfed.ledger.book import Ledger
from gdpfed.planning.people import assign
from gdpfed.planning.plan import Plan
from gdpfed.planning.spent import spent_so_far
from gdpfed.privacy.budgets import Budgets
from gdpfed.runs.evaluate import LOSS_REMOVED, compared_with_start, judged
from gdpfed.runs.folder import OWN_DATA, RunFolder, json_lines, rounds_in
from gdpfed.runs.ledgered import joined_run
from gdpfed.runs.link import LedgerLink
from gdpfed.runs.loop import Evaluation, Progress, Watcher, Work, run
from gdpfed.runs.record import Record
from gdpfed.runs.worth import broken_clients, remarks_of
from gdpfed.tasks.datasets import Dataset, load_dataset
from gdpfed.tasks.features import computed_once, fixed_once
from gdpfed.tasks.losses import Metric, loss_of, metrics_of
from gdpfed.tasks.models import build_model, refuse_running_statistics
from gdpfed.tasks.own_data import Examples, joined, load_own_data
from gdpfed.tasks.partitions import label_mix, partition_dirichlet, partition_iid, partition_natural, skewed_by_budget
from gdpfed.tasks.public import public_data_in
from gdpfed.tasks.task import Task
from gdpfed.tasks.training_settings import TrainingSettings
from gdpfed.training.clients.blocks import ClientData, LocalTraining, flat_parameters, load_parameters
from gdpfed.training.clients.cohort import CohortTrainer
from gdpfed.training.clients.engines import Engine
from gdpfed.training.releases.charged import ChargedRelease
from gdpfed.training.releases.float_sums import float_release
from gdpfed.training.rounds import IntArray, Release, TrainingState, Updates
from gdpfed.training.sampling import simulated, tossed

__all__ = [
    "Simulation", "board", "charged_to", "dealt_groups", "dealt_order", "dropped_in", "prepare",
    "run_simulation", "simulate",
]  # fmt: skip


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
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    # How many clients have inputs that are not finite.
    broken: int = 0
    # What the model rests on that no budget pays for.
    public_data: str = ""

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
            public_data=self.public_data,
        )

    def load(self, parameters: Tensor) -> nn.Module:
        """The model with these parameters."""
        return load_parameters(self.model, parameters)

    def evaluate(self, parameters: Tensor) -> Evaluation:
        """How these parameters do on the test set."""
        found = self._judged(parameters)
        return compared_with_start(found, self._start_loss) if found.measure == LOSS_REMOVED else found

    @functools.cached_property
    def _start_loss(self) -> float:
        return self._judged(self.initial).loss

    def _judged(self, parameters: Tensor) -> Evaluation:
        return judged(
            self.load(parameters),
            self.test_inputs,
            self.test_labels,
            trainer=self.trainer,
            metrics=self.metrics,
            label_mix=self.label_mix,
        )

    def remarks(self, state: TrainingState, told: Sequence[Evaluation | Record], dropped: int) -> tuple[str, ...]:
        """What makes the result worth little, after the last round; ``told`` are all evaluations."""
        return remarks_of(
            self.plan,
            parameters=state.parameters,
            participations=state.participations,
            assignment=self.assignment,
            dropped=dropped,
            broken=self.broken,
            judged=told,
            start_loss=self._start_loss if told else math.inf,
            test_targets=self.test_labels,
        )


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
    """Loads the data, deals it out, builds the model. Functions of one's own, which the task names, are imported."""
    streams.check_seed(seed)
    loss = loss_of(task.training.loss)
    metrics = metrics_of(task.training.metrics)
    local = LocalTraining(
        learning_rate=task.settings.learning_rate,
        learning_rate_decay=task.training.learning_rate_decay,
        momentum=task.training.momentum,
        local_steps=task.settings.local_steps,
        batch_size=task.training.batch_size,
        loss=loss,
    )
    own = is_reference(task.training.dataset)
    held = _own(task, local, seed) if own else _dealt(task, local, seed, data_dir=data_dir)
    return Simulation(
        plan=plan,
        assignment=dealt_groups(plan, task.budgets, seed),
        model=held.model,
        trainer=CohortTrainer(
            held.model, held.data, local, num_workers=num_workers, chunk_clients=chunk, engine=engine
        ),
        test_inputs=held.test.inputs,
        test_labels=held.test.targets,
        seed=seed,
        training=task.training,
        initial=flat_parameters(held.model),
        label_mix=held.mix,
        metrics=metrics,
        broken=broken_clients(held.data.inputs, held.data.members) if own else 0,
        public_data=held.public_data,
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class _Held:
    """A model, and what clients and the test set hold for it."""

    model: nn.Module
    data: ClientData
    test: Examples
    public_data: str
    mix: NDArray[np.float64] | None = None


def _dealt(task: Task, local: LocalTraining, seed: int, *, data_dir: str | Path | None) -> _Held:
    """A data set of the catalogue."""
    dataset = load_dataset(task.training.dataset, data_dir=data_dir)
    sizes: dict[str, int] = {"num_classes": dataset.num_classes}
    if dataset.train_inputs.ndim == 4:
        sizes["channels"] = dataset.train_inputs.shape[1]
    model = _model(task, seed, sizes)
    public_data = public_data_in(model)
    dataset, model = computed_once(dataset, model)
    dataset = dataset.holding_out(task.training.validation)
    members, mix = _members(dataset, task.training, len(task.budgets), seed), None
    if task.training.group_skew:
        epsilons = _shuffled(task.budgets, seed).epsilons
        dealt = streams.generator(seed, "partition", round_number=1)
        members = skewed_by_budget(
            members, dataset.train_labels, epsilons, skew=task.training.group_skew, generator=dealt
        )
        mix = label_mix(members, dataset.train_labels, epsilons, num_classes=dataset.num_classes)
    name = f"the data set {task.training.dataset!r}"
    labels, test_labels = (
        local.loss.targets(torch.from_numpy(one), where=f"in {name}")
        for one in (dataset.train_labels, dataset.test_labels)
    )
    return _Held(
        model=model,
        data=ClientData(inputs=torch.from_numpy(dataset.train_inputs), labels=labels, members=members),
        test=Examples(inputs=torch.from_numpy(dataset.test_inputs), targets=test_labels),
        public_data=public_data,
        mix=mix,
    )


def _own(task: Task, local: LocalTraining, seed: int) -> _Held:
    """A data set of one's own: clients as they are, or examples to be dealt out."""
    training = task.training
    function = imported(training.dataset, what="data set")
    given, test = load_own_data(function, name=training.dataset, budgets=task.budgets, loss=local.loss, seed=seed)
    for name in ("validation", "group_skew"):
        if getattr(training, name):
            raise InputError(f"{name} is for the data sets of `gdpfed data list`: leave it out")
    if isinstance(given, Examples):
        examples, members = given, list(_parts(given, training, len(task.budgets), seed))
    else:
        if training.partition == "dirichlet":
            raise InputError(f"{training.dataset!r} says which client has what: leave partition out")
        examples, members = joined(given)
    targets = torch.cat([examples.targets.flatten(), test.targets.flatten()])
    sizes = {} if targets.is_floating_point() else {"num_classes": int(targets.max()) + 1}
    model = _model(task, seed, sizes)
    public_data = public_data_in(model)
    model, (inputs, test_inputs) = fixed_once(model, examples.inputs, test.inputs)
    return _Held(
        model=model,
        data=ClientData(inputs=inputs, labels=examples.targets, members=members),
        test=Examples(inputs=test_inputs, targets=test.targets),
        public_data=public_data,
    )


def _parts(train: Examples, training: TrainingSettings, num_clients: int, seed: int) -> Sequence[IntArray]:
    generator = streams.generator(seed, "partition")
    if training.partition == "iid":
        return partition_iid(len(train), num_clients, generator=generator)
    if training.partition == "dirichlet" and train.targets.ndim == 1 and not train.targets.is_floating_point():
        return partition_dirichlet(
            train.targets.numpy(),
            num_clients,
            concentration=training.concentration,
            min_size=training.min_examples,
            generator=generator,
        )
    kind = "classes for partition 'dirichlet'" if training.partition == "dirichlet" else "clients for 'natural'"
    raise InputError(f"expected {kind} in {training.dataset!r}, got none: use 'iid', or return clients")


def _model(task: Task, seed: int, sizes: dict[str, int]) -> nn.Module:
    if task.training.model_width is not None:
        sizes["width"] = task.training.model_width
    model = build_model(task.training.model, seed=seed, **sizes)
    refuse_running_statistics(model)
    return model


def simulate(
    folder: RunFolder,
    *,
    num_workers: int | None,
    data_dir: str | Path | None = None,
    watch: Watcher | None = None,
    chunk: int | None = None,
    engine: Engine | None = None,
) -> Evaluation | None:
    """Runs, or goes on with, a run to its end; returns the last evaluation, None without a test set. With a ledger,
    through it.

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


def run_simulation(folder: RunFolder, simulation: Simulation, *, watch: Watcher | None = None) -> Evaluation | None:
    """The rounds of a prepared simulation, in its folder; the last evaluation, None without a test set."""
    _check_device(folder, simulation.trainer.device)
    last: list[Progress] = []

    with _charged(folder, simulation) as work, board(folder) as draw:

        def tell(progress: Progress) -> None:
            last[:] = [progress]
            draw(progress)
            if watch is not None:
                watch(progress)

        state = run(folder, work, watch=tell)
    if last:
        folder.save_remarks(simulation.remarks(state, folder.records(), dropped_in(folder)))
    evaluation = last[0].evaluation if last else None
    if evaluation is None and len(simulation.test_labels):
        evaluation = simulation.evaluate(state.model)
    return evaluation


def dropped_in(folder: RunFolder) -> int:
    """How many updates were not finite in all rounds of a run; a round that was run twice counts once."""
    lines = [line for line in json_lines(folder.path / "timing.jsonl") if isinstance(line, dict)]
    return sum({line.get("round"): line.get("dropped") or 0 for line in lines}.values())


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
def board(folder: RunFolder) -> Iterator[Watcher]:
    """Writes what was evaluated for TensorBoard."""
    rounds_before = rounds_in(folder.path / "records.jsonl")
    if importlib.util.find_spec("tensorboard") is None:
        raise MissingExtraError(package="tensorboard", extra="torch", purpose="writing events")

    @functools.cache
    def made() -> Any:
        """With the first round: a run that is refused has none."""
        from torch.utils.tensorboard import SummaryWriter

        purge = rounds_before + 1 if rounds_before else None
        return SummaryWriter(str(folder.path / "events"), purge_step=purge)

    def draw(progress: Progress) -> None:
        rounds, writer = progress.state.round_number, made()
        if progress.evaluation is not None and progress.epsilons is not None:
            writer.add_scalar("accuracy", progress.evaluation.accuracy, rounds)
            writer.add_scalar("loss", progress.evaluation.loss, rounds)
            for name, value in (progress.evaluation.metrics or {}).items():
                writer.add_scalar(name, value, rounds)
            for group, epsilon in zip(folder.plan.groups, progress.epsilons, strict=True):
                writer.add_scalar(f"epsilon_release/{group.name}", epsilon, rounds)

    try:
        yield draw
    finally:
        if made.cache_info().currsize:
            made().close()


def _check_device(folder: RunFolder, device: str) -> None:
    """Raises InputError where rounds were trained on another kind of device: the rest would be another run's."""
    path = folder.path / "timing.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    trained = {json.loads(line).get("device", "cpu") for line in lines if line.endswith("}")}
    if others := sorted(trained - {device}):
        began = f"the device {others[0]!r}, on which {str(folder.path)!r} has trained so far"
        raise InputError(f"expected {began}, got {device!r}, which rounds otherwise: go on there, or start a new run")
