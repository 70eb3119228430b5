"""`gdpfed train`, `resume`, `compare` and `show`."""

import dataclasses
import secrets
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gdpfed.cli import options
from gdpfed.cli.show import console, finite, print_json, rounded_up, table
from gdpfed.errors import InputError, MissingExtraError
from gdpfed.planning.methods import check_method, make_plan
from gdpfed.planning.plan import Plan
from gdpfed.tasks.task import DEMONSTRATION, Task, load_task

if TYPE_CHECKING:
    from gdpfed.report.comparison import Curve
    from gdpfed.runs.folder import RunFolder
    from gdpfed.runs.ledgered import LedgerLink
    from gdpfed.runs.loop import Progress, Watcher

__all__ = ["compare_runs", "resume_run", "show_runs", "train_run"]

Source = Annotated[
    str, typer.Argument(help="A preset (fmnist-mini, fmnist, svhn, cifar10, shakespeare) or a .toml file.")
]
Seed = Annotated[int, typer.Option("--seed", help="Everything random follows from it.")]
Workers = Annotated[
    int | None, typer.Option("--workers", help="How many train at once. Default: one for each core (or GPU).")
]
EngineName = Annotated[
    str, typer.Option("--engine", help="Who trains: local (this machine) or ray (a Ray cluster). The same result.")
]
RayAddress = Annotated[
    str | None,
    typer.Option("--ray-address", help="HOST:PORT of the cluster. Default: $RAY_ADDRESS, or this machine's."),
]
Device = Annotated[str, typer.Option("--device", help="cpu, cuda or auto (a GPU where there is one).")]
DataDir = Annotated[Path | None, typer.Option("--data-dir", help="Folder with the data files. Default: $GDPFED_DATA.")]
EvaluateEvery = Annotated[int | None, typer.Option("--evaluate-every", help="Rounds between evaluations.")]
Secure = Annotated[bool, typer.Option("--secure", help="Sums by the secure aggregation protocol, with integer noise.")]
Dropout = Annotated[
    float | None, typer.Option("--dropout", help="With --secure: fraction of clients that vanish during a sum.")
]
Colluders = Annotated[
    float | None,
    typer.Option("--colluders", help="With --secure: fraction of a cohort that may tell the server their noise."),
]


def _need_torch() -> None:
    try:
        import torch  # noqa: F401 - only to see that it is there
    except ModuleNotFoundError:
        raise MissingExtraError(package="torch", extra="torch", purpose="training") from None


def _force(workers: int | None, engine: str, ray_address: str | None, device: str) -> dict[str, Any]:
    """Who trains, for `simulate`; what is not there is refused before there is a folder."""
    from gdpfed.training.clients.engines import Engine

    if workers is not None and workers < 1:
        raise InputError(f"expected --workers >= 1, got --workers {workers}")
    chosen = Engine(name=engine, ray_address=ray_address, device=device)
    chosen.check()
    return {"num_workers": workers, "engine": chosen}


def _changed(
    task: Task,
    evaluate_every: int | None,
    *,
    model: str | None = None,
    secure: bool | None = None,
    dropout: float | None = None,
    colluders: float | None = None,
    **changes: object,
) -> Task:
    settings = options.stated(task.settings, changes)
    asked: dict[str, Any] = {
        "evaluate_every": evaluate_every,
        "model": model,
        "secure": secure,
        "dropout": dropout,
        "colluders": colluders,
    }
    training = dataclasses.replace(task.training, **{name: value for name, value in asked.items() if value is not None})
    return dataclasses.replace(task, settings=settings, training=training)


def train_run(
    source: Source = DEMONSTRATION,
    method: options.Method = None,
    seed: Seed = 1,
    rounds: options.Rounds = None,
    participation: options.Participation = None,
    clip_norm: options.ClipNorm = None,
    delta: options.Delta = None,
    accountant: options.Accountant = None,
    fairness_floor: options.FairnessFloor = None,
    weights: options.Weights = None,
    model: Annotated[str | None, typer.Option("--model", help="Another model than the task's, by name.")] = None,
    learning_rate: Annotated[float | None, typer.Option("--learning-rate", help="Of a client's local steps.")] = None,
    server_learning_rate: options.ServerLearningRate = None,
    averaging: options.Averaging = None,
    max_participations: options.MaxParticipations = None,
    evaluate_every: EvaluateEvery = None,
    secure: Secure = False,
    dropout: Dropout = None,
    colluders: Colluders = None,
    ledger: Annotated[
        Path | None, typer.Option("--ledger", help="Charge every round to this ledger; resume goes on through it.")
    ] = None,
    population: Annotated[
        str | None, typer.Option("--population", help="With --ledger: whose budgets. Default: the only one there is.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder of the run. Default: runs/TASK-METHOD-seedN.")
    ] = None,
    workers: Workers = None,
    engine: EngineName = "local",
    ray_address: RayAddress = None,
    device: Device = "cpu",
    data_dir: DataDir = None,
    as_json: options.Json = False,
) -> None:
    """Train a task within its clients' budgets: a simulation, in a folder that can be resumed."""
    _need_torch()
    from gdpfed.runs.folder import create_run

    force = _force(workers, engine, ray_address, device)
    task = _changed(
        load_task(source),
        evaluate_every,
        model=model,
        secure=secure or None,
        dropout=dropout,
        colluders=colluders,
        method=method,
        num_rounds=rounds,
        participation=participation,
        clip_norm=clip_norm,
        delta=delta,
        accountant=accountant,
        fairness_floor=fairness_floor,
        weights=weights,
        learning_rate=learning_rate,
        server_learning_rate=server_learning_rate,
        averaging=averaging,
        max_participations=max_participations,
    )
    plan = make_plan(task.budgets, task.settings)
    if task.training.secure:
        from gdpfed.secure.encoding import planned_sums
        from gdpfed.secure.noise_shares import Tolerance

        # Refused before there is a folder.
        tolerance = Tolerance(dropout_rate=task.training.dropout, colluding_fraction=task.training.colluders)
        planned_sums(plan, num_params=1, tolerance=tolerance)
    name = "".join(letter if letter.isalnum() or letter in "-+." else "-" for letter in task.title)
    secured = "-secure" if task.training.secure else ""
    folder = out or Path("runs") / f"{name}-{plan.method}{secured}-seed{seed}"
    link = None if ledger is None else _link(ledger, population, task, plan, seed=seed, name=folder.name)
    run = create_run(folder, task=task, plan=plan, seed=seed, ledger=link)
    _finish(run, force, data_dir=data_dir, as_json=as_json)


def _link(path: Path, population: str | None, task: Task, plan: Plan, *, seed: int, name: str) -> "LedgerLink":
    """A place in the ledger; what it would refuse is refused before there is a folder."""
    from gdpfed.ledger.book import Ledger
    from gdpfed.runs.ledgered import LedgerLink, check_link, population_of
    from gdpfed.runs.simulate import dealt_groups, dealt_order

    chosen = population_of(Ledger.read(path), population)
    link = LedgerLink(path=path.absolute(), population=chosen, run=f"{name}-{secrets.token_hex(3)}")
    groups = dealt_groups(plan, task.budgets, seed)
    check_link(link, plan, task.budgets, order=dealt_order(task.budgets, seed), assignment=groups)
    return link


def resume_run(
    folder: Annotated[Path, typer.Argument(help="The folder of a run.")],
    workers: Workers = None,
    engine: EngineName = "local",
    ray_address: RayAddress = None,
    device: Device = "cpu",
    data_dir: DataDir = None,
    as_json: options.Json = False,
) -> None:
    """Go on with a run that was interrupted; the result is what it would have been."""
    _need_torch()
    from gdpfed.runs.folder import STAMP, open_run

    run = open_run(folder)
    if run.stamp != STAMP and not run.is_finished:
        raise InputError(
            f"{str(folder)!r} is of a deployment, which goes on with its own nodes: flwr run (docs/deployment.md)"
        )
    if run.is_finished and not as_json:
        console().print(f"{folder} is finished; see it with: gdpfed show {folder}", soft_wrap=True)
        return
    force = _force(workers, engine, ray_address, device)
    _finish(run, force, data_dir=data_dir, as_json=as_json)


def _finish(run: "RunFolder", force: dict[str, Any], *, data_dir: Path | None, as_json: bool) -> None:
    from gdpfed.runs.folder import STAMP
    from gdpfed.runs.simulate import simulate

    out = console()
    if not as_json:
        how = ", secure sums" if run.task.training.secure else ""
        engine = force["engine"]
        how += f", on {engine.place}" if engine != type(engine)() else ""
        how += f", charged to {run.ledger.path} as {run.ledger.run}" if run.ledger is not None else ""
        out.print(f"{run.task.title}, {run.plan.method}{how}, seed {run.seed}, in {run.path}; {STAMP}", soft_wrap=True)
    with _watching(run.plan.num_rounds, quiet=as_json) as watch:
        final = simulate(run, data_dir=data_dir, watch=watch, **force)
    if as_json:
        print_json(
            {
                "folder": str(run.path),
                "method": run.plan.method,
                "seed": run.seed,
                "accuracy": final.accuracy,
                "loss": final.loss,
                "epsilons": [finite(epsilon) for epsilon in _spent(run)],
                "stamp": STAMP,
            }
        )
        return
    costs = ", ".join(rounded_up(epsilon, 3) for epsilon in _spent(run))
    where = "" if run.ledger is None else ", over all runs of the ledger"
    out.print(
        f"accuracy {final.accuracy:.2f} %, loss {final.loss:.4f}; epsilon (release) {costs}{where}", soft_wrap=True
    )
    out.print(f"see it with: gdpfed show {run.path}", soft_wrap=True)


def _spent(run: "RunFolder") -> list[float]:
    """Each group's release epsilon: the plan's, or what its clients have spent by the ledger."""
    if run.ledger is None:
        return [group.epsilon_release for group in run.plan.groups]
    from gdpfed.ledger.book import Ledger

    ledger = Ledger.read(run.ledger.path)
    return list(ledger.spent_by_group(ledger.state.run(run.ledger.run)).values())


@contextmanager
def _watching(num_rounds: int, *, quiet: bool) -> Iterator["Watcher | None"]:
    """A live display on a terminal, lines elsewhere; Ctrl-C leaves a run that can be resumed."""
    if quiet:
        yield None
        return
    started = time.perf_counter()
    done = 0

    def line(progress: "Progress") -> str:
        left = (time.perf_counter() - started) / done * (num_rounds - progress.record.round_number - 1)
        judged = ""
        if progress.evaluation is not None and progress.epsilons is not None:
            spent = " ".join(rounded_up(epsilon, 2) for epsilon in progress.epsilons)
            judged = f"  accuracy {progress.evaluation.accuracy:5.2f} %  loss {progress.evaluation.loss:.3f}"
            judged += f"  epsilon {spent}"
        return (
            f"round {progress.record.round_number + 1:3d}/{num_rounds}{judged}  "
            f"{progress.clients_per_second:5.0f} clients/s  {left:4.0f} s left"
        )

    if not sys.stdout.isatty():

        def plain(progress: "Progress") -> None:
            nonlocal done
            done += 1
            if progress.evaluation is not None and (progress.record.round_number + 1) % max(1, num_rounds // 10) == 0:
                sys.stdout.write(line(progress) + "\n")
                sys.stdout.flush()

        yield plain
        return
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bars

    with Bars(BarColumn(), TextColumn("{task.description}"), console=console()) as bars:
        bar = bars.add_task("starting", total=num_rounds)
        last = ""

        def live(progress: "Progress") -> None:
            nonlocal done, last
            done += 1
            if progress.evaluation is not None:
                last = line(progress)
            bars.update(bar, completed=progress.record.round_number + 1, description=last or line(progress))

        yield live


def compare_runs(
    source: Source = DEMONSTRATION,
    methods: Annotated[
        str, typer.Option("--methods", help="Methods, separated by commas.")
    ] = "fedavg,dp-fedavg,gdpfed+,pooled",
    seeds: Annotated[int, typer.Option("--seeds", help="How many seeds: 1, 2, ...")] = 1,
    rounds: options.Rounds = None,
    participation: options.Participation = None,
    clip_norm: options.ClipNorm = None,
    delta: options.Delta = None,
    accountant: options.Accountant = None,
    evaluate_every: EvaluateEvery = None,
    out: Annotated[
        Path, typer.Option("--out", help="Folder of the runs; finished ones are kept, others resumed.")
    ] = Path("runs/compare"),
    picture: Annotated[Path | None, typer.Option("--picture", help="Default: curves.png in the folder.")] = None,
    workers: Workers = None,
    engine: EngineName = "local",
    ray_address: RayAddress = None,
    device: Device = "cpu",
    data_dir: DataDir = None,
    as_json: options.Json = False,
) -> None:
    """Train several methods on several seeds, and show them side by side."""
    _need_torch()
    from gdpfed.report.comparison import curves
    from gdpfed.runs.folder import create_run, open_run

    force = _force(workers, engine, ray_address, device)
    if seeds < 1:
        raise InputError(f"expected --seeds >= 1, got --seeds {seeds}")
    names = [check_method(name.strip()) for name in methods.split(",")]
    runs = []
    for seed in range(1, seeds + 1):
        for name in names:
            task = _changed(
                load_task(source),
                evaluate_every,
                method=name,
                num_rounds=rounds,
                participation=participation,
                clip_norm=clip_norm,
                delta=delta,
                accountant=accountant,
            )
            folder = out / f"{name}-seed{seed}"
            plan = make_plan(task.budgets, task.settings)
            if (folder / "run.toml").exists():
                run = open_run(folder)
                if run.plan != plan or run.task.training != task.training:
                    raise InputError(f"{str(folder)!r} holds a run with other settings: choose another --out")
            else:
                run = create_run(folder, task=task, plan=plan, seed=seed)
            if not run.is_finished:
                _finish(run, force, data_dir=data_dir, as_json=as_json)
            runs.append(run)
    _show(curves(runs), runs, picture=picture or out / "curves.png", as_json=as_json)


def show_runs(
    folders: Annotated[list[Path], typer.Argument(help="Run folders, or folders of runs.")],
    picture: Annotated[
        Path | None, typer.Option("--picture", help="Where to draw the curves. Default: beside the runs.")
    ] = None,
    as_json: options.Json = False,
) -> None:
    """A table of runs, and their curves as a picture."""
    _need_torch()
    from gdpfed.report.comparison import curves
    from gdpfed.runs.folder import find_runs

    runs = find_runs(folders)
    _show(curves(runs), runs, picture=picture or folders[0] / "curves.png", as_json=as_json)


def _show(drawn: "list[Curve]", runs: "Sequence[RunFolder]", *, picture: Path, as_json: bool) -> None:
    from gdpfed.report.comparison import method_results
    from gdpfed.report.pictures import plot_curves, save_figure
    from gdpfed.runs.stamp import weakest_stamp

    stamp = weakest_stamp(run.stamp for run in runs)
    results = method_results(drawn)
    made: str | None = None
    if any(curve.rounds for curve in drawn):
        try:
            made = str(save_figure(plot_curves(drawn), picture))
        except MissingExtraError:
            made = None
    if as_json:
        content = [dataclasses.asdict(result) for result in results]
        listed = [dataclasses.asdict(curve) for curve in drawn]
        print_json({"stamp": stamp, "results": content, "runs": listed, "picture": made})
        return
    out = console()
    out.print(
        table(
            "Test accuracy (%)",
            ["method", "task", "seeds", "mean", "std", "paper", "epsilon (release)"],
            [
                [
                    f"{result.method} ({result.weights})" if result.weights else result.method,
                    result.title,
                    str(len(result.accuracies)),
                    f"{result.mean:.2f}",
                    "" if result.std is None else f"{result.std:.2f}",
                    "" if result.paper is None else f"{result.paper:.2f}",
                    " ".join(
                        "none" if epsilon is None else rounded_up(epsilon, 3)
                        for epsilon in next(c.epsilons for c in drawn if c.method == result.method and c.is_finished)
                    ),
                ]
                for result in results
            ],
        )
    )
    unfinished = [curve for curve in drawn if not curve.is_finished]
    for curve in unfinished:
        reached = curve.rounds[-1] if curve.rounds else 0
        out.print(
            f"not finished: {curve.title}, {curve.method}, seed {curve.seed}: {reached} of {curve.num_rounds} rounds"
        )
    out.print(stamp, soft_wrap=True)
    out.print(f"picture: {made}" if made else "no picture: pip install 'gdpfed[plots]' to draw it", soft_wrap=True)
