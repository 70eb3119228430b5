"""`gdpfed train`, `resume`, `compare` and `show`."""

import dataclasses
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as Bars
from rich.table import Column
from typer import Argument, Option

from gdpfed.cli import options
from gdpfed.cli.options import Workforce
from gdpfed.cli.show import console, print_table, rounded_up, say, tell
from gdpfed.errors import InputError, MissingExtraError
from gdpfed.planning.methods import check_method, for_method
from gdpfed.planning.plan import Plan
from gdpfed.planning.plan_file import load_plan
from gdpfed.planning.settings import PlanSettings
from gdpfed.privacy.rounding import finite
from gdpfed.tasks.advice import advice_for
from gdpfed.tasks.task import DEMONSTRATION, load_task
from gdpfed.tasks.training_settings import TrainingSettings

if TYPE_CHECKING:
    from gdpfed.runs.folder import RunFolder
    from gdpfed.runs.loop import Evaluation, Progress, Watcher
    from gdpfed.runs.simulate import Simulation
    from gdpfed.tasks.task import Task

__all__ = ["compare_runs", "resume_run", "show_runs", "train_run"]

Source = Annotated[str, Argument(help="A preset (fmnist-mini, fmnist, svhn, cifar10, shakespeare) or a .toml file.")]


@options.with_settings(PlanSettings, TrainingSettings, Workforce)
def train_run(
    asked: options.Asked,
    source: Source = DEMONSTRATION,
    auto: Annotated[
        bool, Option("--auto", help="Choose nothing: method auto, and of known data a model of fixed features.")
    ] = False,
    seed: options.Seed = 1,
    ledger: Annotated[Path | None, Option(help="Charge every round to this ledger; resume goes on through it.")] = None,
    population: Annotated[str | None, Option(help="With --ledger: whose budgets. Default: the only one.")] = None,
    plan: Annotated[
        Path | None, Option(help="A plan that was made before, of gdpfed plan or gdpfed ledger plan.")
    ] = None,
    budgets: Annotated[
        str | None, Option(help="Clients with budgets in the place of the task's: a file, or COUNT@EPSILON,...")
    ] = None,
    out: Annotated[Path | None, Option(help="Folder of the run. Default: runs/TASK-METHOD-seedN.")] = None,
    as_json: options.Json = False,
) -> None:
    """Train a task within its clients' budgets, as a simulation.

    The run is a folder; interrupted, it goes on with gdpfed resume.
    """
    options.need("torch", extra="torch", purpose="training")
    from gdpfed.runs.start import prepared_run

    workforce = asked.workforce()
    if auto:
        dataset = asked.task(source).training.dataset
        asked = options.Asked(stated=advice_for(dataset, stated=asked.stated) | asked.stated)
    task = _trainable(asked, source)
    if budgets is not None:
        task = dataclasses.replace(task, budgets=load_task(budgets).budgets, budgets_source=budgets)
    made = None if plan is None else _made_before(plan, asked)
    run, simulation = prepared_run(
        task, seed=seed, folder=out, ledger=ledger, population=population, plan=made, **workforce.how
    )
    tell(as_json, *_finish(run, simulation, workforce, quiet=as_json))


def _made_before(path: Path, asked: options.Asked) -> Plan:
    """The plan in a file, verified; nothing else may say how to plan."""
    names = {field.name for field in dataclasses.fields(PlanSettings)} - {"learning_rate", "local_steps"}
    if stated := sorted(names & asked.stated.keys()):
        raise InputError(f"expected --plan, or settings to make one with, got both ({stated[0]}): leave one out")
    return load_plan(path)


def _trainable(asked: options.Asked, source: str) -> "Task":
    """The task, which must say what to train on: budgets alone do not."""
    task = asked.task(source)
    if "dataset" not in task.stated:
        raise InputError(
            f"expected a task that says what to train on, got budgets alone ({source}): name the data with --dataset "
            f"({DEMONSTRATION}, another of gdpfed data list, or package.module:function), or write both into a .toml"
        )
    return task


@options.with_settings(Workforce)
def resume_run(
    asked: options.Asked, folder: Annotated[Path, Argument(help="The folder of a run.")], as_json: options.Json = False
) -> None:
    """Go on with a run that was interrupted.

    The result is what it would have been.
    """
    options.need("torch", extra="torch", purpose="training")
    from gdpfed.runs.folder import OWN_DATA, STAMP, open_run
    from gdpfed.runs.simulate import prepare

    run = open_run(folder)
    if run.stamp != STAMP and not run.is_finished:
        raise InputError(
            f"{str(folder)!r} is of a deployment, which goes on with its own nodes: flwr run (docs/deployment.md)"
        )
    if run.is_finished and not as_json:
        say(f"{folder} is finished; see it with: gdpfed show {folder}")
        return
    if run.task.training.dataset == OWN_DATA:
        raise InputError(f"{str(folder)!r} is a run of gdpfed.train: call that again, with this folder, to go on")
    workforce = asked.workforce()
    simulation = prepare(run.task, run.plan, seed=run.seed, **workforce.how)
    tell(as_json, *_finish(run, simulation, workforce, quiet=as_json))


def _finish(run: "RunFolder", simulation: "Simulation", workforce: Workforce, *, quiet: bool) -> tuple[Any, ...]:
    """Trains to the end; returns what there is to tell."""
    import torch

    from gdpfed.runs.folder import STAMP
    from gdpfed.runs.simulate import run_simulation
    from gdpfed.runs.start import spent_by_group

    torch.set_num_threads(1)
    if not quiet:
        how = ", secure sums" if run.task.training.secure else ""
        how += f", on {workforce.place}" if workforce.place else ""
        how += f", charged to {run.ledger.path} as {run.ledger.run}" if run.ledger is not None else ""
        say(f"{run.task.title}, {run.plan.method}{how}, seed {run.seed}, in {run.path}; {STAMP}")
    try:
        with _watching(run.plan.num_rounds, quiet=quiet) as watch:
            final = run_simulation(run, simulation, watch=watch)
    finally:
        simulation.trainer.close()
    public = [remark for record in run.records()[-1:] if (remark := record.public_data_remark)]
    spent, remarks = spent_by_group(run), [*run.remarks(), *public]
    content = {
        "folder": str(run.path),
        "method": run.plan.method,
        "seed": run.seed,
        "accuracy": None if final is None else final.accuracy,
        "loss": None if final is None else final.loss,
        "epsilons": [finite(epsilon) for epsilon in spent],
        "remarks": list(remarks),
        "stamp": STAMP,
    }
    judged = "not evaluated"
    if final is not None:
        content |= {"metrics": final.metrics} if final.metrics else {}
        content |= {"measure": final.measure} if final.measure != "accuracy" else {}
        judged = f"{_judgement(final)}, loss {final.loss:.4f}"
    costs = ", ".join(rounded_up(epsilon, 3) for epsilon in spent)
    where = "" if run.ledger is None else ", over all runs of the ledger"
    against = "models and server" if run.plan.is_rotation else "release"
    told = f"{judged}; epsilon ({against}) {costs}{where}"
    return content, told, *(f"note: {remark}" for remark in remarks), f"see it with: gdpfed show {run.path}"


def _judgement(found: "Evaluation", width: int = 0) -> str:
    """Accuracy, or what stands in its place, and own metrics."""
    first = (
        f"accuracy {found.accuracy:{width}.2f} %"
        if found.measure == "accuracy"
        else f"{found.accuracy:.1f} % less loss"
    )
    return ", ".join([first, *(f"{name} {value:.4g}" for name, value in (found.metrics or {}).items())])


@contextmanager
def _watching(num_rounds: int, *, quiet: bool) -> Iterator["Watcher | None"]:
    """A live display on a terminal, lines elsewhere; Ctrl-C leaves a run that can be resumed."""
    if quiet:
        yield None
        return
    started, done, judged = time.perf_counter(), 0, ""
    is_terminal = sys.stdout.isatty()
    # What matters first: a narrow terminal shows no more.
    columns = (
        TextColumn("{task.fields[left]}"),
        BarColumn(bar_width=12),
        TextColumn("{task.description}", table_column=Column(ratio=1, no_wrap=True)),
    )
    with Bars(*columns, console=console(), disable=not is_terminal, expand=True) as bars:
        bar = bars.add_task("starting", total=num_rounds, left="")

        def watch(progress: "Progress") -> None:
            nonlocal done, judged
            done += 1
            reached, judgement = progress.record.round_number + 1, progress.evaluation
            if judgement is not None and progress.epsilons is not None:
                spent = " ".join(rounded_up(epsilon, 2) for epsilon in progress.epsilons)
                judged = f"  {_judgement(judgement, 5)}  loss {judgement.loss:.3f}  epsilon {spent}"
            left = f"{(time.perf_counter() - started) / done * (num_rounds - reached):4.0f} s left"
            line = f"round {reached:3d}/{num_rounds}{judged}  {progress.clients_per_second:5.0f} clients/s"
            if judgement is not None and not is_terminal and reached % max(1, num_rounds // 10) == 0:
                sys.stdout.write(f"{left}  {line}\n")
                sys.stdout.flush()
            bars.update(bar, completed=reached, description=line, left=left)

        yield watch


@options.with_settings(PlanSettings, TrainingSettings, Workforce, without=["method"])
def compare_runs(
    asked: options.Asked,
    source: Source = DEMONSTRATION,
    methods: Annotated[str, Option(help="Methods, separated by commas.")] = "fedavg,dp-fedavg,gdpfed+,auto",
    seeds: Annotated[int, Option(help="How many seeds: 1, 2, ...")] = 1,
    out: Annotated[Path, Option(help="Folder of the runs; finished ones are kept, others resumed.")] = Path(
        "runs/compare"
    ),
    picture: Annotated[Path | None, Option(help="Default: curves.png in the folder.")] = None,
    as_json: options.Json = False,
) -> None:
    """Train several methods on several seeds, and show them side by side."""
    options.need("torch", extra="torch", purpose="training")
    from gdpfed.runs.simulate import prepare
    from gdpfed.runs.start import open_if_same, prepared_run

    workforce = asked.workforce()
    options.check_count("--seeds", seeds)
    names = [check_method(name.strip()) for name in methods.split(",")]
    task = _trainable(asked, source)
    runs = []
    for seed in range(1, seeds + 1):
        for name in names:
            one = dataclasses.replace(task, settings=for_method(task.settings, name))
            folder = out / f"{''.join('-' if letter == ':' else letter for letter in name)}-seed{seed}"
            run = open_if_same(folder, one)
            if run is None:
                run, simulation = prepared_run(one, seed=seed, folder=folder, **workforce.how)
            elif not run.is_finished:
                simulation = prepare(one, run.plan, seed=seed, **workforce.how)
            if not run.is_finished:
                _, *lines = _finish(run, simulation, workforce, quiet=as_json)
                say(*([] if as_json else lines))
            runs.append(run)
    _show(runs, picture=picture or out / "curves.png", as_json=as_json)


def show_runs(
    folders: Annotated[list[Path], Argument(help="Run folders, or folders of runs.")],
    picture: Annotated[Path | None, Option(help="Where to draw the curves. Default: beside the runs.")] = None,
    as_json: options.Json = False,
) -> None:
    """A table of runs, and their curves as a picture."""
    from gdpfed.runs.folder import find_runs

    _show(find_runs(folders), picture=picture or folders[0] / "curves.png", as_json=as_json)


def _show(runs: "Sequence[RunFolder]", *, picture: Path, as_json: bool) -> None:
    from gdpfed.report.comparison import MethodResult, curves, method_results
    from gdpfed.report.pictures import plot_curves, save_figure
    from gdpfed.runs.stamp import weakest_stamp

    stamp = weakest_stamp(run.stamp for run in runs)
    drawn = curves(runs)
    results = method_results(drawn)
    # Of tasks without right answers something else stands in the place of accuracies.
    others = sorted({record.measure for run in runs for record in run.records()[-1:]} - {"accuracy"})
    measured = " or ".join(others) or "Test accuracy"
    saved: str | None = None
    if any(curve.rounds for curve in drawn):
        with suppress(MissingExtraError):
            figure = plot_curves(drawn)
            for axis in figure.axes if others else ():
                axis.set_ylabel(f"{measured} (%)")
            saved = str(save_figure(figure, picture))
    content = {
        "stamp": stamp,
        "results": [dataclasses.asdict(result) for result in results],
        "runs": [dataclasses.asdict(curve) for curve in drawn],
        "picture": saved,
        "public_data": sorted({record.public_data for run in runs for record in run.records()[-1:]} - {""}),
    }
    if not as_json:
        epsilons = {(curve.method, curve.against): curve.epsilons for curve in reversed(drawn) if curve.is_finished}
        has_rotations = any(one.against == "server" for one in results)
        against: dict[str, Callable[[MethodResult], str]] = {"against": lambda one: one.against}
        columns: dict[str, Callable[[MethodResult], str]] = {
            "method": lambda one: f"{one.method} ({one.weights})" if one.weights else one.method,
            "task": lambda one: one.title,
            "seeds": lambda one: str(len(one.accuracies)),
            "mean": lambda one: f"{one.mean:.2f}",
            "std": lambda one: "" if one.std is None else f"{one.std:.2f}",
            "paper": lambda one: "" if one.paper is None else f"{one.paper:.2f}",
            **(against if has_rotations else {}),
            "epsilon" if has_rotations else "epsilon (release)": lambda one: " ".join(
                "none" if epsilon is None else rounded_up(epsilon, 3) for epsilon in epsilons[one.method, one.against]
            ),
        }
        print_table(f"{measured} (%)", columns, results)
    lines = [
        f"not {'evaluated' if curve.is_finished else 'finished'}: {curve.title}, {curve.method}, seed {curve.seed}: "
        f"{max(curve.rounds, default=0)} of {curve.num_rounds} rounds"
        for curve in drawn
        if not (curve.is_finished and curve.accuracies)
    ]
    lines += sorted(
        {
            f"{run.task.title}, {run.task.training.model}: {remark}"
            for run in runs
            for record in run.records()[-1:]
            if (remark := record.public_data_remark)
        }
    )
    drawing = f"picture: {saved}" if saved else "no picture: no round was evaluated yet"
    if not saved and any(curve.rounds for curve in drawn):
        drawing = "no picture: pip install 'gdpfed[plots]' to draw it"
    if any(curve.against == "server" for curve in drawn):
        lines.append("against server: the epsilon holds against whoever sees the models, and the server")
    tell(as_json, content, *lines, stamp, drawing)
