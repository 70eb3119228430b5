"""The only loop: `gdpfed train`, `gdpfed.train`, the audit's training and a deployment's server all run it.

Place: over `training/rounds.py`; what varies is in `Work`. With a folder, every round is recorded and saved before the
next begins, and a run that was killed goes on where it was. Without one, nothing is written.

For each round: run it, evaluate it where that is due, append its record, save the checkpoint, tell the watcher. Then
close the books, and save the model.

Guarantees (tests of the same name):
  a_loop_without_a_folder_is_the_same   the same states and records, and no file.
"""

import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass

from torch import Tensor

from gdpfed.ledger.charges import ExhaustedError
from gdpfed.planning.plan import Plan
from gdpfed.runs.folder import RunFolder
from gdpfed.runs.record import Record
from gdpfed.runs.stamp import STAMP
from gdpfed.tasks.catalogue import public_data_of
from gdpfed.training.rounds import Release, RoundRecord, Sample, TrainingState, initial_state, run_round

__all__ = ["Evaluation", "Progress", "Watcher", "Work", "run"]


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """How the model does on the public test set.

    ``accuracy`` is in percent; of a task without right answers it is what ``measure`` says in its place. ``metrics``
    are a caller's own, by name. ``by_budget``, where data were tied to budgets: the accuracy on test images in the
    mixture of classes that the clients of each budget have, strictest first.
    """

    accuracy: float
    loss: float
    by_budget: tuple[float, ...] = ()
    measure: str = "accuracy"
    metrics: Mapping[str, float] | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class Progress:
    """Handed to whoever watches, after each round; ``evaluation`` and ``epsilons`` where it was evaluated."""

    state: TrainingState
    record: RoundRecord
    evaluation: Evaluation | None
    epsilons: tuple[float, ...] | None
    seconds: float
    clients_per_second: float


Watcher = Callable[[Progress], None]


def _nothing(*_: object) -> None:
    pass


@dataclass(frozen=True, kw_only=True, eq=False)
class Work:
    """What stays the same from round to round.

    ``named`` is a flat model by parameter names, to be saved. ``spent`` is what each group has spent after so many
    rounds. ``close`` ends the run in its ledger. ``fault`` is called where a test may kill the process.
    """

    plan: Plan
    initial: Tensor
    num_clients: int
    layer_sizes: list[int]
    sample: Sample
    release: Release
    spent: Callable[[int], tuple[float, ...]]
    evaluate: Callable[[Tensor], Evaluation] | None = None
    evaluate_every: int = 1
    named: Callable[[Tensor], Mapping[str, Tensor]] = lambda model: {"model": model}
    close: Callable[[], None] = _nothing
    device: str = "cpu"
    fault: Callable[[str, int], None] = _nothing


def run(folder: RunFolder | None, work: Work, *, watch: Watcher = _nothing) -> TrainingState:
    """Runs to the end of the plan, or until no group can pay; goes on from the folder's checkpoint if it has one.

    While it runs, nobody else runs the folder."""
    with nullcontext() if folder is None else folder.locked():
        return _run(folder, work, watch)


def _run(folder: RunFolder | None, work: Work, watch: Watcher) -> TrainingState:
    state = folder.load_checkpoint() if folder is not None else None
    state = state or initial_state(work.initial, work.num_clients)
    if folder is not None and folder.is_finished:
        return state
    while state.round_number < work.plan.num_rounds:
        started = time.perf_counter()
        try:
            state, record = run_round(
                state, plan=work.plan, sample=work.sample, release=work.release, layer_sizes=work.layer_sizes
            )
        except ExhaustedError:
            # Every group has stopped: the model is what it is.
            break
        trained = time.perf_counter() - started
        due = state.round_number % work.evaluate_every == 0 or state.round_number == work.plan.num_rounds
        evaluation = work.evaluate(state.model) if due and work.evaluate is not None else None
        spent = work.spent(state.round_number) if evaluation is not None else None
        if folder is not None:
            if evaluation is not None and spent is not None:
                told = vars(record) | vars(evaluation) | {"round_number": state.round_number}
                told["public_data"] = public_data_of(folder.task.training.model)
                folder.append_record(Record(**told, epsilons=spent, device=work.device))
            if folder.stamp == STAMP:
                # Only of a simulation: how long a round took tells how often it was tried.
                timing = {"round": state.round_number, "seconds": trained, "clients": sum(record.cohort)}
                # Also of rounds that are not evaluated: at the end somebody asks.
                timing |= {"dropped": record.dropped} if record.dropped else {}
                folder.append_timing(timing | ({} if work.device == "cpu" else {"device": work.device}))
            work.fault("recorded", record.round_number)
            folder.save_checkpoint(state)
            work.fault("checkpointed", record.round_number)
        watch(
            Progress(
                state=state,
                record=record,
                evaluation=evaluation,
                epsilons=spent,
                seconds=time.perf_counter() - started,
                clients_per_second=sum(record.cohort) / trained,
            )
        )
    work.close()
    work.fault("closed", state.round_number)
    if folder is not None:
        named = work.named(state.model)
        folder.save_model(list(named), list(named.values()))
    return state
