"""What GDPFed+ adds to a round: seconds for solving the rates, once, and for Top-k, each round.

Place: planning and sparsification -> results. Times are of the machine that ran; the paper's are of a GPU server.
"""

import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gdpfed.errors import InputError
from gdpfed.planning.groups import group_by_distinct
from gdpfed.planning.rates import paper_rates
from gdpfed.report.paper import paper_tables
from gdpfed.tasks.task import PRESETS, load_task
from gdpfed_reproduce.problem_one import ProblemOne, problem_one_rates
from gdpfed_reproduce.without_training import check_datasets

__all__ = ["OverheadRow", "load_overhead", "overhead_table", "save_overhead"]

# The paper prints no sizes. These are of its authors' public code for other papers with the models that it names.
_PARAMETERS = {"fmnist": 1_663_370, "svhn": 537_664, "cifar10": 11_173_962, "shakespeare": 822_570}
_FIELDS = ("dataset", "parameters", "solve_closed_form", "solve_numeric", "topk", "paper_solve", "paper_topk")


@dataclass(frozen=True, kw_only=True)
class OverheadRow:
    """Median seconds: solving by the closed form and numerically, and Top-k for all groups of a round."""

    dataset: str
    parameters: int
    solve_closed_form: float
    solve_numeric: float
    topk: float
    paper_solve: float
    paper_topk: float | None


def _seconds(work: Callable[[], object], repeats: int) -> float:
    """The median time of some calls, after one that warms up."""
    work()
    taken = []
    for _ in range(repeats):
        begun = time.perf_counter()
        work()
        taken.append(time.perf_counter() - begun)
    return statistics.median(taken)


def overhead_table(datasets: Sequence[str] = PRESETS, *, repeats: int = 5) -> list[OverheadRow]:
    """Times everything, here and now, on one core."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return [_row(name, repeats) for name in check_datasets(datasets)]
    finally:
        torch.set_num_threads(threads)


def _row(name: str, repeats: int) -> OverheadRow:
    import torch

    from gdpfed.training.sparsify import keep_largest

    printed = paper_tables()["overhead"]
    task = load_task(name)
    settings = task.settings
    groups = group_by_distinct(task.budgets, task.budgets.default_delta)
    problem = ProblemOne(
        groups=groups,
        num_rounds=settings.num_rounds,
        learning_rate=settings.learning_rate,
        local_steps=settings.local_steps,
    )
    size = _PARAMETERS[name]
    noisy = torch.randn(size, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    kept = [round(fraction * size) for fraction in paper_tables()["configurations"]["common"]["keep_fractions"]]
    return OverheadRow(
        dataset=name,
        parameters=size,
        solve_closed_form=_seconds(lambda: paper_rates(groups, participation=settings.participation), repeats),
        solve_numeric=_seconds(lambda: problem_one_rates(problem, participation=settings.participation), repeats),
        topk=_seconds(lambda: [keep_largest(noisy, num_kept=count) for count in kept], repeats),
        paper_solve=float(printed["solve_sampling_seconds"]),
        paper_topk=float(printed["topk_seconds_per_round_cifar10_gpu"]) if name == "cifar10" else None,
    )


def save_overhead(rows: Sequence[OverheadRow], folder: Path) -> Path:
    """Keeps the times in ``folder``; a data set that was timed before and is not among ``rows`` stays."""
    path = folder / "overhead.json"
    kept = {row.dataset: row for row in (load_overhead(folder) if path.is_file() else [])}
    kept.update({row.dataset: row for row in rows})
    content: dict[str, Any] = {"unit": "seconds, median, one core; two significant digits"}
    content["rows"] = [
        {field: _rounded(getattr(kept[name], field)) for field in _FIELDS} for name in PRESETS if name in kept
    ]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot write {str(path)!r}: {error.strerror or error}; choose another --records") from None
    return path


def _rounded(value: Any) -> Any:
    return float(f"{value:.2g}") if isinstance(value, float) else value


def load_overhead(folder: Path) -> list[OverheadRow]:
    """The times that were kept."""
    path = folder / "overhead.json"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return [OverheadRow(**{field: row[field] for field in _FIELDS}) for row in content["rows"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"expected times as JSON in {str(path)!r}, got a damaged file ({error!r}): delete it"
        ) from None
