"""Train a task under its plan, round by round; `training/clients/engines.py` says where the clients are trained.

Place: tasks -> plan -> rounds -> records. A simulation: all data in one place, noise from a seed.

Guarantees (tests of the same name):
  same_seed_same_bytes                records and model, for every number of workers.
  a_run_stays_on_its_kind_of_device   another would round otherwise: refused, and said in the records.
"""

import dataclasses
import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from gdpfed import streams
from gdpfed.errors import InputError
from gdpfed.ledger.book import Ledger
from gdpfed.ledger.charges import ExhaustedError
from gdpfed.planning.people import assign
from gdpfed.planning.plan import Plan
from gdpfed.planning.spent import spent_so_far
from gdpfed.privacy.budgets import Budgets
from gdpfed.runs.folder import RunFolder
from gdpfed.runs.ledgered import LedgeredRelease, joined_run
from gdpfed.runs.record import Record
from gdpfed.tasks.datasets import Dataset, load_dataset
from gdpfed.tasks.features import computed_once
from gdpfed.tasks.models import build_model, refuse_running_statistics
from gdpfed.tasks.partitions import (
    label_mix,
    partition_dirichlet,
    partition_iid,
    partition_natural,
    skewed_by_budget,
)
from gdpfed.tasks.task import Task, TrainingSettings
from gdpfed.training.clients.cohort import ClientData, CohortTrainer, LocalTraining, flat_parameters
from gdpfed.training.clients.engines import Engine
from gdpfed.training.rounds import Release, RoundRecord, TrainingState, float_release, initial_state, run_round

__all__ = ["Evaluation", "Progress", "Simulation", "dealt_groups", "dealt_order", "prepare", "simulate", "spent_so_far"]

_EVALUATION_BATCH = 250


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """How the model does on the public test set.

    ``by_budget``, where data were tied to budgets: the accuracy on test images in the mixture of classes that the
    clients of each budget have, strictest first.
    """

    accuracy: float
    loss: float
    by_budget: tuple[float, ...] = ()


@dataclass(frozen=True, kw_only=True, eq=False)
class Progress:
    """Handed to whoever watches, after each round."""

    record: RoundRecord
    evaluation: Evaluation | None
    epsilons: tuple[float, ...] | None
    num_rounds: int
    seconds: float
    clients_per_second: float


Watcher = Callable[[Progress], None]


@dataclass(frozen=True, kw_only=True, eq=False)
class Simulation:
    """Everything that stays the same from round to round."""

    plan: Plan
    assignment: NDArray[np.int64]
    model: nn.Module
    trainer: CohortTrainer
    test_inputs: Tensor
    test_labels: Tensor
    seed: int
    release: Release = float_release
    label_mix: NDArray[np.float64] | None = None

    def run_round(self, state: TrainingState) -> tuple[TrainingState, RoundRecord]:
        """One round from ``state``."""
        return run_round(
            state,
            plan=self.plan,
            assignment=self.assignment,
            updates=lambda parameters, clients: self.trainer.updates(
                parameters, clients, seed=self.seed, round_number=state.round_number
            ),
            layer_sizes=self.trainer.layer_sizes,
            seed=self.seed,
            release=self.release,
        )

    def initial_state(self) -> TrainingState:
        """Before the first round."""
        return initial_state(flat_parameters(self.model), len(self.assignment))

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


def _spent(plan: Plan, rounds: int, charging: LedgeredRelease | None) -> tuple[float, ...]:
    """By the ledger where there is one: other runs and lost rounds count too."""
    return spent_so_far(plan, rounds) if charging is None else charging.spent()


def _members(dataset: Dataset, training: TrainingSettings, num_clients: int, seed: int) -> Sequence[NDArray[np.int64]]:
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


def dealt_order(budgets: Budgets, seed: int) -> NDArray[np.int64]:
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


def dealt_groups(plan: Plan, budgets: Budgets, seed: int) -> NDArray[np.int64]:
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
    release: Release = float_release
    if task.training.secure:
        from gdpfed.training.releases.secure_sums import SecureRelease

        release = SecureRelease(
            plan,
            num_params=len(flat_parameters(model)),
            dropout=task.training.dropout,
            colluders=task.training.colluders,
        )
    return Simulation(
        plan=plan,
        assignment=assignment,
        release=release,
        model=model,
        trainer=CohortTrainer(model, data, local, num_workers=num_workers, chunk_clients=chunk, engine=engine),
        test_inputs=torch.from_numpy(dataset.test_inputs),
        test_labels=torch.from_numpy(dataset.test_labels),
        seed=seed,
        label_mix=mix,
    )


def simulate(
    run: RunFolder,
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
    torch.set_num_threads(1)
    how: dict[str, Any] = {"num_workers": num_workers, "data_dir": data_dir, "chunk": chunk, "engine": engine}
    if run.ledger is None:
        return _simulate(run, None, watch=watch, **how)
    with Ledger.open(run.ledger.path) as ledger:
        return _simulate(run, ledger, watch=watch, **how)


def _charging(simulation: Simulation, run: RunFolder, ledger: Ledger) -> LedgeredRelease:
    if run.ledger is None:
        raise AssertionError("a run with a ledger has a link to it")
    places = joined_run(
        ledger,
        run.ledger,
        run.plan,
        run.task.budgets,
        order=dealt_order(run.task.budgets, run.seed),
        assignment=simulation.assignment,
    )
    return LedgeredRelease(simulation.release, ledger, run.ledger.run, places)


def _simulate(
    run: RunFolder,
    ledger: Ledger | None,
    *,
    num_workers: int | None,
    data_dir: str | Path | None,
    watch: Watcher | None,
    chunk: int | None,
    engine: Engine | None,
) -> Evaluation:
    simulation = prepare(
        run.task, run.plan, seed=run.seed, num_workers=num_workers, data_dir=data_dir, chunk=chunk, engine=engine
    )
    try:
        return _run_rounds(run, simulation, ledger, watch)
    finally:
        simulation.trainer.close()


def _run_rounds(run: RunFolder, simulation: Simulation, ledger: Ledger | None, watch: Watcher | None) -> Evaluation:
    device = simulation.trainer.device
    _check_device(run, device)
    charging = None if ledger is None else _charging(simulation, run, ledger)
    if charging is not None:
        simulation = dataclasses.replace(simulation, release=charging)
    state = run.load_checkpoint() or simulation.initial_state()
    evaluation = None
    board = run.event_writer(state.round_number)
    try:
        while state.round_number < run.plan.num_rounds and (charging is None or charging.run.is_open):
            started = time.perf_counter()
            try:
                state, record = simulation.run_round(state)
            except ExhaustedError:
                # Every group has stopped: the model is what it is.
                break
            if charging is not None:
                record = dataclasses.replace(record, cohort=charging.cohort)
            seconds = time.perf_counter() - started
            due = (
                state.round_number % run.task.training.evaluate_every == 0 or state.round_number == run.plan.num_rounds
            )
            evaluation = simulation.evaluate(state.model) if due else None
            spent = _spent(run.plan, state.round_number, charging) if due else None
            if evaluation is not None and spent is not None:
                run.append_record(_as_record(state, record, evaluation, spent, device))
                board.add_scalar("accuracy", evaluation.accuracy, state.round_number)
                board.add_scalar("loss", evaluation.loss, state.round_number)
                for group, epsilon in zip(run.plan.groups, spent, strict=True):
                    board.add_scalar(f"epsilon_release/{group.name}", epsilon, state.round_number)
            timing = {"round": state.round_number, "seconds": seconds, "clients": sum(record.cohort)}
            run.append_timing(timing | _elsewhere(device))
            run.save_checkpoint(state)
            if watch is not None:
                watch(
                    Progress(
                        record=record,
                        evaluation=evaluation,
                        epsilons=spent,
                        num_rounds=run.plan.num_rounds,
                        seconds=time.perf_counter() - started,
                        clients_per_second=sum(record.cohort) / seconds,
                    )
                )
        if charging is not None:
            charging.close()
        final = evaluation or simulation.evaluate(state.model)
        model = simulation.load(state.model)
        names, tensors = zip(*((name, value.detach()) for name, value in model.named_parameters()), strict=True)
        run.save_model(list(names), list(tensors))
    finally:
        board.close()
    return final


def _check_device(run: RunFolder, device: str) -> None:
    """Raises InputError where rounds were trained on another kind of device: the rest would be another run's."""
    path = run.path / "timing.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    trained = {json.loads(line).get("device", "cpu") for line in lines if line.endswith("}")}
    others = sorted(trained - {device})
    if others:
        raise InputError(
            f"expected --device {others[0]}, on which {str(run.path)!r} has trained so far, got {device}: another "
            f"device rounds otherwise, and the result would be no one's; or start a run in a new folder"
        )


def _elsewhere(device: str) -> dict[str, str]:
    """Only of other devices than the CPU, so that other records stay as they were."""
    return {} if device == "cpu" else {"device": device}


def _as_record(
    state: TrainingState, record: RoundRecord, evaluation: Evaluation, spent: tuple[float, ...], device: str
) -> Record:
    return Record(
        round_number=state.round_number,
        accuracy=evaluation.accuracy,
        loss=evaluation.loss,
        epsilons=spent,
        cohort=record.cohort,
        clipped=record.clipped,
        dropped=record.dropped,
        update_norm=record.update_norm,
        vanished=record.vanished,
        by_budget=evaluation.by_budget,
        device=device,
    )
