"""`gdpfed.train`: one's own model, one's own clients, their budgets.

Place: the library's front door to a simulation; it runs the same loop as `gdpfed train`. With a folder it is recorded
there, can be resumed by the same call, and can be reported on; with a ledger every round is charged to it.
`examples/own_model.py` and the example in docs/tutorial.md are run by the tests.

Guarantees (tests of the same name):
  a_library_run_is_resumed         stopped anywhere and called again: the same model and records, byte for byte.
  another_library_run_is_refused   a folder of another plan, seed, model or data is not gone on with.
"""

import copy
import dataclasses
import hashlib
import json
import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from gdpfed.errors import InputError
from gdpfed.files import write_whole
from gdpfed.ledger.book import Ledger
from gdpfed.planning.methods import make_plan
from gdpfed.planning.people import assign
from gdpfed.planning.plan import Plan
from gdpfed.planning.plan_file import plan_hash
from gdpfed.planning.settings import PlanSettings
from gdpfed.privacy.budgets import Budgets
from gdpfed.runs.folder import OWN_DATA, RunFolder, create_run, open_run
from gdpfed.runs.ledgered import check_link, population_of
from gdpfed.runs.link import LedgerLink
from gdpfed.runs.loop import Progress, run
from gdpfed.runs.simulate import Simulation, charged_to
from gdpfed.tasks.models import refuse_running_statistics
from gdpfed.tasks.task import Task, TrainingSettings
from gdpfed.training.clients.cohort import ClientData, CohortTrainer, LocalTraining, flat_parameters
from gdpfed.training.clients.engines import Engine
from gdpfed.training.rounds import RoundRecord

__all__ = ["Trained", "train"]

Examples = tuple[Tensor, Tensor]
_INPUTS = "inputs.json"


@dataclass(frozen=True, kw_only=True, eq=False)
class Trained:
    """A trained copy of the model, its plan, and the accuracy at each evaluation (none without a test set).

    ``records`` are of the rounds that this call has run. ``folder`` is where the run lies, if it was given one:
    `gdpfed report FOLDER` and `gdpfed show FOLDER` read it.
    """

    model: nn.Module
    plan: Plan
    accuracies: tuple[float, ...]
    records: tuple[RoundRecord, ...]
    folder: Path | None = None


def train(
    *,
    model: nn.Module,
    clients: Sequence[Examples],
    budgets: Budgets,
    seed: int,
    settings: PlanSettings | None = None,
    local: LocalTraining | None = None,
    test: Examples | None = None,
    evaluate_every: int = 1,
    secure: bool = False,
    dropout: float = 0.0,
    colluders: float = 0.0,
    folder: str | Path | None = None,
    ledger: str | Path | None = None,
    population: str | None = None,
    num_workers: int | None = None,
    watch: Callable[[RoundRecord], None] | None = None,
    engine: str = "local",
    ray_address: str | None = None,
    device: str = "cpu",
) -> Trained:
    """Simulates federated training of ``model`` on ``clients`` (inputs and labels for each), within their ``budgets``.

    A simulation: the noise comes from ``seed``, so the result is reproducible and no private release.

    Args:
        model: is copied; what is trained is returned.
        clients: the examples of each client, in the order of ``budgets``.
        budgets: what each client allows, e.g. ``gdpfed.parse_compact("500@1,500@4")`` or ``gdpfed.read_budgets(path)``.
        seed: of everything random.
        settings: the method, the rounds, the clip norm and so on; ``PlanSettings()`` by default.
        local: a client's own steps; by default with the learning rate and steps of ``settings``.
        test: examples to evaluate the model on, every ``evaluate_every`` rounds and after the last.
        secure: sums by the secure aggregation protocol, with integer noise. ``dropout`` is the fraction of clients that
            vanish, ``colluders`` the fraction of a cohort that may tell the server its noise.
        folder: where the run is recorded. The same call goes on with a run that was stopped.
        ledger: charge every round to this ledger, in ``population`` (by default its only one); needs ``folder``.
        num_workers: how many train at once: by default one for each core.
        watch: called after each round.
        engine: "local", or "ray" for a cluster at ``ray_address``, with the same result.
        device: "cpu"; "cuda" or "auto" train on a GPU, with a result that is the same up to rounding.
    """
    if len(clients) != len(budgets):
        raise InputError(f"expected a budget for each of {len(clients)} clients, got {len(budgets)}")
    settings = settings or PlanSettings()
    plan = make_plan(budgets, settings)
    assignment = assign(plan, budgets)
    refuse_running_statistics(model)
    data = _client_data(clients)
    local = local or LocalTraining(learning_rate=settings.learning_rate, local_steps=settings.local_steps)
    training = TrainingSettings(
        dataset=OWN_DATA,
        model=type(model).__name__,
        momentum=local.momentum,
        learning_rate_decay=local.learning_rate_decay,
        batch_size=local.batch_size,
        evaluate_every=evaluate_every,
        secure=secure,
        dropout=dropout,
        colluders=colluders,
    )
    task = Task(
        title=type(model).__name__, budgets=budgets, budgets_source="budgets.csv", settings=settings, training=training
    )
    link = _link(ledger, population, folder)
    order = np.arange(len(budgets), dtype=np.int64)
    trained = copy.deepcopy(model)
    with ExitStack() as stack:
        stack.callback(torch.set_num_threads, torch.get_num_threads())
        torch.set_num_threads(1)
        trainer = CohortTrainer(
            trained,
            data,
            local,
            num_workers=num_workers,
            engine=Engine(name=engine, ray_address=ray_address, device=device),
        )
        stack.callback(trainer.close)
        simulation = Simulation(
            plan=plan,
            assignment=assignment,
            model=trained,
            trainer=trainer,
            test_inputs=test[0] if test is not None else torch.empty(0),
            test_labels=test[1].long() if test is not None else torch.empty(0, dtype=torch.long),
            seed=seed,
            training=training,
            initial=flat_parameters(trained),
        )
        work, run_folder = simulation.work(), None
        if folder is not None:
            if link is not None and not (Path(folder) / "run.toml").exists():
                check_link(link, plan, budgets, order=order, assignment=assignment)
            run_folder = _opened(Path(folder), task, plan, seed, link, _digests(model, data, local, test))
        if link is not None and run_folder is not None and not run_folder.is_finished:
            book = stack.enter_context(Ledger.open(link.path))
            work = charged_to(book, link, work, budgets, order, assignment)
        records: list[RoundRecord] = []
        accuracies: list[float] = []

        def tell(progress: Progress) -> None:
            records.append(progress.record)
            if progress.evaluation is not None:
                accuracies.append(progress.evaluation.accuracy)
            if watch is not None:
                watch(progress.record)

        before = [] if run_folder is None else [record.accuracy for record in run_folder.records()]
        state = run(run_folder, work, watch=tell)
        simulation.load(state.model)
    if not math.isfinite(float(state.parameters.abs().sum())):
        raise InputError("the model diverged (its parameters are not finite): lower learning_rate or clip_norm")
    return Trained(
        model=trained,
        plan=plan,
        accuracies=(*before, *accuracies),
        records=tuple(records),
        folder=None if run_folder is None else run_folder.path,
    )


def _client_data(clients: Sequence[Examples]) -> ClientData:
    lengths = [len(labels) for _, labels in clients]
    ends = np.cumsum(lengths)
    return ClientData(
        inputs=torch.cat([inputs for inputs, _ in clients]),
        labels=torch.cat([labels for _, labels in clients]).long(),
        members=[np.arange(end - length, end, dtype=np.int64) for length, end in zip(lengths, ends, strict=True)],
    )


def _link(ledger: str | Path | None, population: str | None, folder: str | Path | None) -> LedgerLink | None:
    if ledger is None:
        return None
    if folder is None:
        raise InputError("expected a folder for a run that is charged to a ledger, got none: give folder=")
    path = Path(ledger).resolve()
    return LedgerLink(path=path, population=population_of(Ledger.read(path), population).name, run=Path(folder).name)


def _digests(model: nn.Module, data: ClientData, local: LocalTraining, test: Examples | None) -> dict[str, str]:
    """What a resumed run must have in common with its beginning, and a folder cannot hold."""
    lengths = np.array([len(indices) for indices in data.members], dtype=np.int64)
    parts = {
        "model": [flat_parameters(model)],
        "clients": [data.inputs, data.labels, torch.from_numpy(lengths)],
        "test": list(test or ()),
    }
    digests = {}
    for name, tensors in parts.items():
        digest = hashlib.sha256()
        for tensor in tensors:
            digest.update(str((tuple(tensor.shape), tensor.dtype)).encode() + tensor.contiguous().numpy().tobytes())
        digests[name] = digest.hexdigest()
    return digests | {"local": str(local)}


def _opened(
    path: Path, task: Task, plan: Plan, seed: int, link: LedgerLink | None, digests: dict[str, str]
) -> RunFolder:
    """The folder of this run: a new one, or the one that an earlier call has left."""
    inputs = path / _INPUTS
    if not (path / "run.toml").exists():
        path.mkdir(parents=True, exist_ok=True)
        write_whole(inputs, (json.dumps(digests, indent=2) + "\n").encode())
        names = [task.budgets.label(number) for number in range(len(task.budgets))]
        named = dataclasses.replace(task, budgets=dataclasses.replace(task.budgets, clients=tuple(names)))
        return create_run(path, task=named, plan=plan, seed=seed, ledger=link)
    folder = open_run(path)
    began = json.loads(inputs.read_text(encoding="utf-8")) if inputs.is_file() else {}
    pairs = {name: (began.get(name), digest) for name, digest in digests.items()} | {
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
