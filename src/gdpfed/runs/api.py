"""`gdpfed.train`: one's own model, one's own clients, their budgets.

Place: the library's front door to a simulation; it runs the same loop as `gdpfed train`. With a folder it is recorded
there, can be resumed by the same call, and can be reported on; with a ledger every round is charged to it.
`examples/own_model.py` and the example in docs/tutorial.md are run by the tests.

Guarantees (tests of the same name):
  people_have_many_things          arrays, data sets, dicts, doubles, texts and files of budgets: the same model.
  a_library_run_is_resumed         stopped anywhere and called again: the same model and records, byte for byte.
  another_library_run_is_refused   a folder of another plan, seed, model or data is not gone on with.
"""

import copy
import dataclasses
import hashlib
import json
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from gdpfed.errors import InputError, expect_word
from gdpfed.ledger.book import Ledger
from gdpfed.planning.methods import make_plan
from gdpfed.planning.people import assign
from gdpfed.planning.plan import Plan
from gdpfed.planning.plan_file import load_plan, plan_hash
from gdpfed.planning.settings import PlanSettings, settings_of
from gdpfed.privacy.budgets import Budgets, looks_compact, parse_compact, read_budgets
from gdpfed.runs.folder import OWN_DATA, RunFolder, check_new, create_run, open_run
from gdpfed.runs.ledgered import check_link, population_of
from gdpfed.runs.link import LedgerLink
from gdpfed.runs.loop import Evaluation, Progress, Watcher, run
from gdpfed.runs.record import Record
from gdpfed.runs.simulate import Simulation, board, charged_to, dropped_in
from gdpfed.runs.worth import broken_clients
from gdpfed.streams import check_seed
from gdpfed.tasks.advice import LEARNING_RATE
from gdpfed.tasks.features import fixed_once
from gdpfed.tasks.losses import Loss, Metric, loss_of, metrics_of
from gdpfed.tasks.models import refuse_running_statistics
from gdpfed.tasks.own_data import Examples, client_examples, examples_of, joined
from gdpfed.tasks.public import public_data_in
from gdpfed.tasks.task import Task
from gdpfed.tasks.training_settings import TrainingSettings
from gdpfed.training.clients.blocks import ClientData, LocalTraining, flat_parameters
from gdpfed.training.clients.cohort import CohortTrainer
from gdpfed.training.clients.engines import Engine
from gdpfed.training.rounds import IntArray, RoundRecord

__all__ = ["RoundDone", "Trained", "train"]

_INPUTS = "inputs.json"
_LOG = logging.getLogger("gdpfed")


@dataclass(frozen=True, kw_only=True, eq=False)
class Trained:
    """A trained copy of the model, its plan, and what was found at each evaluation (nothing without a test set).

    ``accuracies`` are in percent; of a task without right answers they are shares of the untrained model's loss that
    training has removed. ``metrics`` are a caller's own, by name. ``remarks`` say what makes the result worth little.
    ``records`` are of the rounds that this call has run. ``folder`` is where the run lies, if it was given one:
    `gdpfed report FOLDER` and `gdpfed show FOLDER` read it.
    """

    model: nn.Module
    plan: Plan
    accuracies: tuple[float, ...]
    records: tuple[RoundRecord, ...]
    losses: tuple[float, ...] = ()
    metrics: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    epsilons: tuple[float, ...] = ()
    remarks: tuple[str, ...] = ()
    folder: Path | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class RoundDone:
    """What `gdpfed.train` tells whoever watches, after each round; the first has ``round_number`` 0.

    ``accuracy``, ``loss`` and ``metrics`` are None where the round was not evaluated.
    """

    record: RoundRecord
    evaluation: Evaluation | None
    plan: Plan
    _spent: Callable[[], tuple[float, ...]]
    _model: Callable[[], nn.Module]

    @property
    def round_number(self) -> int:
        """Of this round, from 0."""
        return self.record.round_number

    @property
    def accuracy(self) -> float | None:
        """In percent."""
        return None if self.evaluation is None else self.evaluation.accuracy

    @property
    def loss(self) -> float | None:
        """The mean loss on the test set."""
        return None if self.evaluation is None else self.evaluation.loss

    @property
    def metrics(self) -> Mapping[str, float] | None:
        """A caller's own."""
        return None if self.evaluation is None else self.evaluation.metrics or {}

    @property
    def epsilons(self) -> tuple[float, ...]:
        """What each group has spent so far."""
        return self._spent()

    @property
    def model(self) -> nn.Module:
        """A copy of the model as it is now."""
        return self._model()


def train(
    *,
    model: nn.Module,
    clients: Any,
    budgets: Budgets | str | Path,
    seed: int,
    settings: PlanSettings | Literal["auto"] | None = None,
    plan: Plan | str | Path | None = None,
    local: LocalTraining | None = None,
    loss: str | Callable[[Tensor, Tensor], Tensor] = "cross-entropy",
    metrics: Mapping[str, Metric] | None = None,
    test: Any = None,
    columns: tuple[str, str] | None = None,
    evaluate_every: int = 1,
    secure: bool = False,
    dropout: float = 0.0,
    colluders: float = 0.0,
    out: str | Path | None = None,
    folder: str | Path | None = None,
    ledger: str | Path | None = None,
    population: str | None = None,
    num_workers: int | None = None,
    watch: Callable[[RoundDone], None] | None = None,
    engine: str = "local",
    ray_address: str | None = None,
    device: str = "cpu",
) -> Trained:
    """Simulates federated training of ``model`` on ``clients``, within their ``budgets``.

    A simulation: the noise comes from ``seed``, so the result is reproducible and no private release.

    Args:
        model: is copied; what is trained is returned. Parameters with requires_grad=False stay as they are. Dropout
            follows from the seed.
        clients: the examples of each client, in the order of ``budgets``, or by name: pairs of tensors or numpy arrays,
            dicts of arrays, torch or Hugging Face data sets.
        budgets: what each client allows: ``"500@1,500@4"``, the path of a budgets file, or what
            ``gdpfed.read_budgets`` gives.
        seed: of everything random.
        settings: the method, the rounds, the clip norm and so on; ``PlanSettings()`` by default. "auto" stands for
            ``PlanSettings(method="auto", learning_rate=0.2)``, in which no clip norm and no step is to be chosen.
        plan: a plan that was made before, or its file, in the place of ``settings``.
        local: a client's own steps; by default with the learning rate and steps of ``settings``.
        loss: "cross-entropy", "mse", "bce-with-logits", "next-token", or a function of (outputs, targets) that gives a
            loss for each example, or their mean.
        metrics: functions of (outputs, targets) of the whole test set, by name.
        test: examples to evaluate the model on, every ``evaluate_every`` rounds and after the last.
        columns: which columns of dicts and data sets are input and target, where their names do not tell.
        secure: sums by the secure aggregation protocol, with integer noise. ``dropout`` is the fraction of clients that
            vanish, ``colluders`` the fraction of a cohort that may tell the server its noise.
        out: the folder where the run is recorded, for reports and TensorBoard. The same call goes on with a run that
            was stopped. ``folder`` is an older name of it.
        ledger: charge every round to this ledger, in ``population`` (by default its only one); needs ``out``.
        num_workers: how many train at once: by default one for each core.
        watch: called after each round, with its round_number, accuracy, loss, metrics, epsilons and model.
        engine: "local", or "ray" for a cluster at ``ray_address``, with the same result.
        device: "cpu"; "cuda" or "auto" train on a GPU, with a result that is the same up to rounding.
    """
    if out is not None and folder is not None:
        raise InputError("expected out or folder, which are the same, got both: leave folder out")
    given = _Given(
        model=model,
        budgets=_budgets(budgets),
        seed=seed,
        plan=plan,
        settings=_settings(settings),
        loss=loss_of(loss),
        metrics=metrics_of(metrics or {}),
        folder=Path(target) if (target := folder if out is None else out) is not None else None,
    )
    planned, chosen = given.planned()
    assignment = assign(chosen, given.budgets)
    refuse_running_statistics(model)
    local = local or LocalTraining(learning_rate=planned.learning_rate, local_steps=planned.local_steps)
    local = dataclasses.replace(local, loss=given.loss)
    held, members = joined(client_examples(clients, given.budgets, loss=given.loss, columns=columns))
    judged = _test_set(test, held, given.loss, columns)
    training = TrainingSettings(
        dataset=OWN_DATA,
        model=type(model).__name__,
        loss=loss if isinstance(loss, str) else "own",
        momentum=local.momentum,
        learning_rate_decay=local.learning_rate_decay,
        batch_size=local.batch_size,
        evaluate_every=evaluate_every,
        secure=secure,
        dropout=dropout,
        colluders=colluders,
    )
    task = Task(
        title=type(model).__name__,
        budgets=given.budgets,
        budgets_source="budgets.csv",
        settings=planned,
        training=training,
    )
    link = _link(ledger, population, given.folder)
    order = np.arange(len(given.budgets), dtype=np.int64)
    trained, kind = copy.deepcopy(model), _kind(model)
    trained.float()
    rest, (inputs, test_inputs) = fixed_once(trained, held.inputs, judged.inputs)
    data = ClientData(inputs=inputs, labels=held.targets, members=members)
    with ExitStack() as stack:
        stack.callback(torch.set_num_threads, torch.get_num_threads())
        torch.set_num_threads(1)
        trainer = CohortTrainer(
            rest,
            data,
            local,
            num_workers=num_workers,
            engine=Engine(name=engine, ray_address=ray_address, device=device),
        )
        stack.callback(trainer.close)
        simulation = Simulation(
            plan=chosen,
            assignment=assignment,
            model=rest,
            trainer=trainer,
            test_inputs=test_inputs,
            test_labels=judged.targets,
            seed=seed,
            training=training,
            initial=flat_parameters(rest),
            metrics=given.metrics,
            broken=broken_clients(held.inputs, members),
            public_data=public_data_in(model),
        )
        work, run_folder = simulation.work(), None
        if given.folder is not None:
            if link is not None and not (given.folder / "run.toml").exists():
                check_link(link, chosen, given.budgets, order=order, assignment=assignment)
            if given.metrics and len(judged.targets):
                # A metric that fails does so before there is a folder.
                simulation.evaluate(simulation.initial)
            digests = _digests(given, held, members, local, judged)
            run_folder = _opened(given.folder, task, chosen, seed, link, digests)

        def named(flat: Tensor) -> dict[str, Tensor]:
            """The whole model is saved, with what is fixed."""
            simulation.load(flat)
            return {name: value.detach() for name, value in trained.named_parameters()}

        work = dataclasses.replace(work, named=named)
        draw: Watcher = lambda _: None  # noqa: E731 - nothing to draw without a folder
        if run_folder is not None and not run_folder.is_finished:
            draw = stack.enter_context(board(run_folder))
            if link is not None:
                book = stack.enter_context(Ledger.open(link.path))
                work = charged_to(book, link, work, given.budgets, order, assignment)
        records: list[RoundRecord] = []
        evaluations: list[Evaluation | Record] = [] if run_folder is None else list(run_folder.records())

        def current(flat: Tensor) -> nn.Module:
            simulation.load(flat)
            return copy.deepcopy(trained).to(kind)

        def tell(progress: Progress) -> None:
            draw(progress)
            records.append(progress.record)
            if progress.evaluation is not None:
                evaluations.append(progress.evaluation)
            if watch is not None:
                state = progress.state
                watch(
                    RoundDone(
                        record=progress.record,
                        evaluation=progress.evaluation,
                        plan=chosen,
                        _spent=lambda: progress.epsilons or work.spent(state.round_number),
                        _model=lambda: current(state.model),
                    )
                )

        state = run(run_folder, work, watch=tell)
        dropped = sum(record.dropped or 0 for record in records) if run_folder is None else dropped_in(run_folder)
        remarks = simulation.remarks(state, evaluations, dropped)
        if run_folder is not None:
            run_folder.save_remarks(remarks)
        spent = work.spent(state.round_number)
        # Last: to judge another model is to load it.
        simulation.load(state.model)
    for remark in remarks:
        _LOG.warning("%s", remark)
    return Trained(
        model=trained.to(kind),
        plan=chosen,
        accuracies=tuple(one.accuracy for one in evaluations),
        records=tuple(records),
        losses=tuple(one.loss for one in evaluations),
        metrics={name: tuple((one.metrics or {})[name] for one in evaluations) for name in given.metrics},
        epsilons=spent,
        remarks=remarks,
        folder=None if run_folder is None else run_folder.path,
    )


def _settings(stated: PlanSettings | str | None) -> PlanSettings | None:
    if isinstance(stated, str):
        expect_word("settings", stated, ("auto",))
        return PlanSettings(method=stated, learning_rate=LEARNING_RATE)
    return stated


@dataclass(frozen=True, kw_only=True, eq=False)
class _Given:
    """What `train` was given, read."""

    model: nn.Module
    budgets: Budgets
    seed: int
    plan: Plan | str | Path | None
    settings: PlanSettings | None
    loss: Loss
    metrics: dict[str, Metric]
    folder: Path | None

    def planned(self) -> tuple[PlanSettings, Plan]:
        """The plan, made or given, and its settings."""
        check_seed(self.seed)
        if self.plan is None:
            settings = self.settings or PlanSettings()
            return settings, make_plan(self.budgets, settings)
        if self.settings is not None:
            raise InputError("expected settings to make a plan with, or a plan, got both: leave one out")
        plan = self.plan if isinstance(self.plan, Plan) else load_plan(self.plan)
        plan.verify()
        return settings_of(plan, PlanSettings()), plan


def _budgets(given: Budgets | str | Path) -> Budgets:
    if isinstance(given, Budgets):
        return given
    if isinstance(given, str) and looks_compact(given) and not Path(given).is_file():
        return parse_compact(given)
    return read_budgets(given)


def _kind(model: nn.Module) -> torch.dtype:
    """Of the model's numbers, to which the trained ones return: training is in float32."""
    return next((one.dtype for one in model.parameters() if one.is_floating_point()), torch.float32)


def _test_set(test: Any, held: Examples, loss: Loss, columns: tuple[str, str] | None) -> Examples:
    if test is None:
        return Examples(inputs=held.inputs[:0], targets=held.targets[:0])
    judged = examples_of(test, loss=loss, where="the test set", columns=columns)
    if not len(judged):
        raise InputError("expected at least one example in the test set, got none: leave test out to evaluate nothing")
    if judged.inputs.shape[1:] != held.inputs.shape[1:] or judged.inputs.dtype != held.inputs.dtype:
        raise InputError(
            f"expected test inputs of {held.inputs.dtype} {tuple(held.inputs.shape[1:])}, as the clients', got "
            f"{judged.inputs.dtype} {tuple(judged.inputs.shape[1:])}"
        )
    return judged


def _link(ledger: str | Path | None, population: str | None, folder: Path | None) -> LedgerLink | None:
    if ledger is None:
        if population is not None:
            raise InputError(f"expected a ledger for the population {population!r}, got none: give ledger=")
        return None
    if folder is None:
        raise InputError("expected a folder for a run that is charged to a ledger, got none: give out= or folder=")
    path = Path(os.path.realpath(ledger))
    return LedgerLink(path=path, population=population_of(Ledger.read(path), population).name, run=folder.name)


def _digests(
    given: _Given, held: Examples, members: Sequence[IntArray], local: LocalTraining, test: Examples
) -> dict[str, str]:
    """What a resumed run must have in common with its beginning, and a folder cannot hold."""
    lengths = np.array([len(indices) for indices in members], dtype=np.int64)
    parts = {
        "model": [parameter.detach().float().flatten() for parameter in given.model.parameters()],
        "clients": [held.inputs, held.targets, torch.from_numpy(lengths)],
        "test": [test.inputs, test.targets] if len(test) else [],
    }
    # One vector, as a flat model is.
    parts["model"] = [torch.cat(parts["model"])]
    digests = {}
    for name, tensors in parts.items():
        digest = hashlib.sha256()
        for tensor in tensors:
            digest.update(str((tuple(tensor.shape), tensor.dtype)).encode() + tensor.contiguous().numpy().tobytes())
        digests[name] = digest.hexdigest()
    # Left out where they are what they were before they could be chosen.
    chosen = {"loss": given.loss.name} if given.loss.kind == "any" else {}
    chosen |= {"metrics": ", ".join(given.metrics)} if given.metrics else {}
    return digests | {"local": str(local)} | chosen


def _opened(
    path: Path, task: Task, plan: Plan, seed: int, link: LedgerLink | None, digests: dict[str, str]
) -> RunFolder:
    """The folder of this run: a new one, or the one that an earlier call has left."""
    inputs = path / _INPUTS
    if not (path / "run.toml").exists():
        check_new(path)
        names = [task.budgets.label(number) for number in range(len(task.budgets))]
        # With names another delta would be the default: it is written down.
        deltas = task.budgets.deltas_or(task.settings.delta or task.budgets.default_delta)
        budgets = dataclasses.replace(task.budgets, clients=tuple(names), deltas=deltas)
        named = dataclasses.replace(task, budgets=budgets)
        given = {_INPUTS: json.dumps(digests, indent=2) + "\n"}
        return create_run(path, task=named, plan=plan, seed=seed, ledger=link, files=given)
    folder = open_run(path)
    began = json.loads(inputs.read_text(encoding="utf-8")) if inputs.is_file() else {}
    pairs = {name: (began.get(name), digests.get(name)) for name in (*digests, *began)} | {
        "plan": (plan_hash(folder.plan), plan_hash(plan)),
        "training": (folder.task.training, task.training),
        "seed": (folder.seed, seed),
        "ledger": (folder.ledger, link),
    }
    differing = [name for name, (before, now) in pairs.items() if before != now]
    if differing:
        began = f"{str(path)!r} holds a run that began with another {', '.join(differing)}"
        raise InputError(f"{began}: give train() what it was given then, or choose another folder")
    return folder
