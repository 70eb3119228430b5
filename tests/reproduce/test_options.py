"""Which runs the commands of `gdpfed reproduce` make, and in which order."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from gdpfed.errors import InputError
from gdpfed_reproduce.options_commands import ORDER, Asked, asked_of, in_words_of_seeds, scale_of, wanted_of
from gdpfed_reproduce.records import CellRecord, RunRecord, config_of, save_records


def asked(tmp_path: Path, *names: str, **changes: Any) -> Asked:
    stated: dict[str, Any] = {"datasets": "fmnist", "seeds": None, "workers": 1, "as_json": False, **changes}
    return asked_of(names, scale=scale_of("paper"), out=tmp_path, records=tmp_path / "records", **stated)


def named(wanted: Sequence[tuple[Any, Any]]) -> list[tuple[str, str, int]]:
    return [(cell.dataset, cell.method.label, job.seed) for cell, job in wanted]


@pytest.mark.parametrize(
    ("stated", "seeds", "words"),
    [
        (None, (1, 2, 3), "3 seeds"),
        ("1", (1,), "1 seed"),
        ("4", (1, 2, 3, 4), "4 seeds"),
        ("2,3", (2, 3), "seeds 2, 3"),
        ("3, 1", (3, 1), "seeds 3, 1"),
    ],
)
def test_seeds_are_how_many_or_which(stated: str | None, seeds: tuple[int, ...], words: str, tmp_path: Path) -> None:
    assert asked(tmp_path, "main", seeds=stated).seeds == seeds
    assert in_words_of_seeds(seeds) == words


@pytest.mark.parametrize("stated", ["", "0", "-1", "1001", "1,1", "1,x", "1.5", "0,2", ","])
def test_bad_seeds_are_refused(stated: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="expected --seeds as how many, from 1 to 1000, or as which"):
        asked(tmp_path, "main", seeds=stated)


@pytest.mark.parametrize("stated", ["", "seeds", "seed,seed", "paper"])
def test_bad_orders_are_refused(stated: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="expected --order among experiment, seed, dataset, method, column"):
        asked(tmp_path, "main", order=stated)


def test_what_changes_slowest_comes_first(tmp_path: Path) -> None:
    some: dict[str, Any] = {"datasets": "svhn,fmnist", "methods": "gdpfed+,fedavg", "seeds": "2,1"}
    usual = named(wanted_of(asked(tmp_path, "main", **some)))
    assert usual == [
        ("svhn", "gdpfed+", 2), ("svhn", "fedavg", 2), ("fmnist", "gdpfed+", 2), ("fmnist", "fedavg", 2),
        ("svhn", "gdpfed+", 1), ("svhn", "fedavg", 1), ("fmnist", "gdpfed+", 1), ("fmnist", "fedavg", 1),
    ]  # fmt: skip
    by_method = named(wanted_of(asked(tmp_path, "main", order="method,dataset", **some)))
    assert by_method == [
        ("svhn", "gdpfed+", 2), ("svhn", "gdpfed+", 1), ("fmnist", "gdpfed+", 2), ("fmnist", "gdpfed+", 1),
        ("svhn", "fedavg", 2), ("svhn", "fedavg", 1), ("fmnist", "fedavg", 2), ("fmnist", "fedavg", 1),
    ]  # fmt: skip
    assert sorted(by_method) == sorted(usual)


def test_the_papers_cells_come_first_in_every_order(tmp_path: Path) -> None:
    for order in (ORDER, "dataset,method", "seed,method"):
        cells = [cell for cell, _ in wanted_of(asked(tmp_path, "main", datasets="fmnist,svhn", order=order))]
        ours = [cell.paper is None for cell in cells]
        assert ours == sorted(ours)


def test_recorded_runs_are_left_out_when_asked(tmp_path: Path) -> None:
    every = wanted_of(asked(tmp_path, "main"))
    cell, job = every[4]
    run = RunRecord(seed=job.seed, key="k", accuracies=(50.0,), rounds=(50,), epsilons=(1.0,), versions="v")
    kept = CellRecord(
        experiment="main", dataset="fmnist", column="", method=cell.method.name, weights="", scale="full",
        config=config_of(cell.task), plan="p", parameters=1, results_version=1, runs=(run,),
    )  # fmt: skip
    save_records([kept], tmp_path / "records")
    assert len(wanted_of(asked(tmp_path, "main"))) == len(every)
    missing = named(wanted_of(asked(tmp_path, "main", only_missing=True)))
    assert missing == [each for each in named(every) if each != ("fmnist", cell.method.label, job.seed)]
    # Another experiment's cell of the same task is the same run.
    shared = named(wanted_of(asked(tmp_path, "convergence", only_missing=True)))
    assert ("fmnist", cell.method.label, job.seed) not in shared
