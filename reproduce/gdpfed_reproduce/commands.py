"""`gdpfed reproduce`: the paper's tables beside ours. Those that train are in `reproduce_training`."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from gdpfed.cli import options
from gdpfed.cli.show import console, print_json, table
from gdpfed.errors import MissingExtraError
from gdpfed.tasks.task import PRESETS
from gdpfed_reproduce.beyond_commands import beyond
from gdpfed_reproduce.status_commands import overhead, status
from gdpfed_reproduce.training_commands import add_training_commands
from gdpfed_reproduce.without_training import check_datasets, noise_table, sampling_sweep, sampling_table

__all__ = ["reproduce_app"]

reproduce_app = typer.Typer(help="The paper's tables and figures beside ours.", add_completion=False)

_ALL = ",".join(PRESETS)

Datasets = Annotated[str, typer.Option("--datasets", help="Data sets, separated by commas.")]


def _names(datasets: str) -> tuple[str, ...]:
    return check_datasets([name.strip() for name in datasets.split(",")])


def _joined(values: Sequence[float] | None, digits: int) -> str:
    return "not printed" if values is None else " ".join(f"{value:.{digits}f}" for value in values)


def _difference(relative: float | None) -> str:
    return "" if relative is None else f"{100 * relative:+.1f} %"


@reproduce_app.command()
def sampling(
    datasets: Datasets = _ALL,
    picture: Annotated[
        Path, typer.Option("--picture", help="Where to draw the ratios against epsilon_1 (.png, .svg, .pdf).")
    ] = Path("gdpfed-results/sampling.png"),
    as_json: options.Json = False,
) -> None:
    """Table I's optimal sampling ratios, and the figure of ratios against the strictest epsilon."""
    rows = sampling_table(_names(datasets))
    drawn = _draw_sweep(picture)
    if as_json:
        content = [{**dataclasses.asdict(row), "difference": row.difference} for row in rows]
        print_json({"unit": "percent", "rows": content, "picture": drawn})
        return
    out = console()
    out.print(
        table(
            "Optimal sampling ratios in %, strictest group first",
            ["data set", "epsilons", "q", "paper", "ours", "numeric Problem 1", "ours - paper", "objective"],
            [
                [
                    row.dataset,
                    " ".join(f"{epsilon:g}" for epsilon in row.epsilons),
                    f"{row.participation:g}",
                    _joined(row.paper, 2),
                    _joined(row.closed_form, 2),
                    _joined(row.numeric, 2),
                    " ".join(f"{difference:+.2f}" for difference in row.difference),
                    f"{row.objective_gap:+.0e}",
                ]
                for row in rows
            ],
        )
    )
    out.print(
        "ours: the closed form, epsilon / sqrt(epsilon + 2 log(1/delta)) scaled to the cohort. objective: how much "
        "larger the paper's objective is at its own ratios, relatively; it is so flat that its solver stopped early.",
        soft_wrap=True,
    )
    out.print(f"picture: {drawn}" if drawn else "no picture: pip install 'gdpfed[plots]' to draw it", soft_wrap=True)


def _draw_sweep(picture: Path) -> str | None:
    """Draws the figure where Matplotlib is installed; the tables do not need it."""
    from gdpfed.report.pictures import save_figure
    from gdpfed_reproduce.experiment_plots import plot_sampling_sweep

    try:
        return str(save_figure(plot_sampling_sweep(sampling_sweep()), picture))
    except MissingExtraError:
        return None


@reproduce_app.command()
def noise(datasets: Datasets = _ALL, as_json: options.Json = False) -> None:
    """The noise table, for all four data sets and both accountants, at the rates that the paper prints."""
    rows = noise_table(_names(datasets))
    if as_json:
        print_json(
            {
                "rows": [
                    {
                        **dataclasses.asdict(row),
                        "largest_difference": row.largest_difference,
                        "magnitude_difference": row.magnitude_difference,
                    }
                    for row in rows
                ]
            }
        )
        return
    out = console()
    out.print(
        table(
            "Squared noise multipliers, strictest group first, and noise magnitude",
            [
                "data set",
                "method",
                "accountant",
                "paper",
                "ours",
                "differs",
                "paper Lambda",
                "our Lambda",
                "differs",
                "at equal step",
                "signal/noise",
            ],
            [
                [
                    row.dataset,
                    row.method,
                    row.accountant,
                    _joined(row.paper_variances, 2),
                    _joined(row.noise_variances, 3),
                    _difference(row.largest_difference),
                    "not printed" if row.paper_magnitude is None else f"{row.paper_magnitude:.2f}",
                    f"{row.magnitude:.3f}",
                    _difference(row.magnitude_difference),
                    f"{row.at_equal_step:.3f}",
                    f"{row.signal_to_noise:.1f}",
                ]
                for row in rows
            ],
        )
    )
    out.print(
        "Lambda as the paper computes it: a plain mean of C^2 sigma^2 for gdpfed, a mean weighted by r^2 and k/d for "
        "the last two, so the "
        "column compares two scales; 'at equal step' is one scale for all. The paper used RDP; its figures are rounded "
        "to 0.01.",
        soft_wrap=True,
    )


add_training_commands(reproduce_app)
reproduce_app.command()(beyond)
reproduce_app.command()(overhead)
reproduce_app.command()(status)
