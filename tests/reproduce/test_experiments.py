import dataclasses

import pytest

from gdpfed.errors import InputError
from gdpfed.planning.methods import make_plan
from gdpfed.report.paper import paper_tables
from gdpfed.tasks.models import build_model
from gdpfed.tasks.task import PRESETS, load_task, task_to_toml
from gdpfed_reproduce.experiments import EXPERIMENTS, FULL, SMOKE, Cell, Scale, cells_of, experiment_of


def all_cells(name: str) -> list[Cell]:
    return [cell for dataset in PRESETS for cell in cells_of(EXPERIMENTS[name], dataset)]


def printed(content: object) -> list[float]:
    """Every mean in a table of the paper: the first of a pair, or the field of that name."""
    if isinstance(content, dict):
        if "mean" in content:
            return [content["mean"]]
        return [mean for name, value in content.items() if name != "columns" for mean in printed(value)]
    if isinstance(content, list) and content and isinstance(content[0], list):
        return [pair[0] for pair in content]
    return []


@pytest.mark.parametrize(
    ("name", "table"),
    [
        ("main", "main_accuracy"),
        ("preferences", "preference_distribution"),
        ("heterogeneity", "data_heterogeneity_cifar10"),
        ("clipping", "clipping_threshold"),
        ("budgets", "privacy_budget_scale"),
        ("sparsification", "sparsification"),
    ],
)
def test_every_printed_accuracy_is_a_cell(name: str, table: str) -> None:
    ours = sorted(cell.paper.mean for cell in all_cells(name) if cell.paper is not None)
    assert ours == sorted(printed(paper_tables()[table]))
    assert len(ours) >= 16


def figure(name: str, dataset: str, method: str, column: str) -> tuple[float, float]:
    (cell,) = (
        cell for cell in cells_of(EXPERIMENTS[name], dataset) if (cell.method.label, cell.column) == (method, column)
    )
    assert cell.paper is not None
    return cell.paper.mean, cell.paper.std


def test_figures_stand_where_the_paper_has_them() -> None:
    """Read from the paper's text, not from paper.json."""
    assert figure("main", "shakespeare", "gdpfed+", "") == (42.00, 0.45)
    assert figure("preferences", "svhn", "gdpfed+", "3:2:1") == (65.81, 1.17)
    assert figure("heterogeneity", "cifar10", "idp-fedavg", "0.7") == (31.22, 0.46)
    assert figure("budgets", "fmnist", "dp-fedavg", "0.5x") == (57.72, 1.83)
    assert figure("clipping", "shakespeare", "gdpfed+", "1.5x") == (42.33, 0.16)
    assert figure("sensitivity", "fmnist", "dp-fedavg", "budgets 0.5x") == (57.72, 1.83)
    assert figure("sensitivity", "fmnist", "gdpfed+", "clip norm 1.5x") == (74.49, 0.81)
    assert figure("sparsification", "cifar10", "gdpfed+", "0.1,0.3,0.5") == (38.38, 0.77)


def test_shared_cells_are_the_same_runs() -> None:
    main = {cell.method.label: task_to_toml(cell.task) for cell in cells_of(EXPERIMENTS["main"], "fmnist")}
    shared = {
        ("convergence", ""): {}, ("steps", "1"): {}, ("preferences", "2:2:2"): {}, ("clipping", "1x"): {},
        ("budgets", "1x"): {}, ("models", "cnn2"): {},
        ("sparsification", "0.7,0.8,0.9"): {}, ("sparsification", "1.0,1.0,1.0"): {"gdpfed+": "gdpfed-opc"},
    }  # fmt: skip
    for (name, column), other in shared.items():
        found = [cell for cell in cells_of(EXPERIMENTS[name], "fmnist") if cell.column == column]
        assert found
        for cell in found:
            assert task_to_toml(cell.task) == main[other.get(cell.method.label, cell.method.label)]
    everything = {task_to_toml(cell.task) for name in EXPERIMENTS for cell in cells_of(EXPERIMENTS[name], "fmnist")}
    assert len(everything) == 95


def test_columns_change_what_they_say() -> None:
    def tasks(name: str, method: str = "gdpfed+") -> dict[str, Cell]:
        found = cells_of(EXPERIMENTS[name], "shakespeare")
        return {cell.column: cell for cell in found if cell.method.label == method}

    assert tasks("preferences")["1:4:1"].task.budgets_source == "119@0.5,476@1.5,119@3"
    assert tasks("budgets")["0.75x"].task.budgets_source == "238@0.375,238@1.125,238@2.25"
    assert tasks("clipping")["1.25x"].task.settings.clip_norm == 1.25
    unequal = {cell.column: cell for cell in cells_of(EXPERIMENTS["heterogeneity"], "cifar10")}
    assert unequal["0.3"].task.training.partition == "dirichlet"
    assert unequal["0.3"].task.training.concentration == 0.3
    assert not cells_of(EXPERIMENTS["heterogeneity"], "shakespeare")
    assert tasks("sparsification")["0.1,0.3,0.5"].task.settings.keep == (0.1, 0.3, 0.5)
    reweighted = [cell for cell in cells_of(EXPERIMENTS["main"], "fmnist") if cell.method.weights]
    assert [cell.task.settings.weights for cell in reweighted] == ["inverse-variance"] * 2
    assert {cell.task.settings.accountant for name in EXPERIMENTS for cell in all_cells(name)} == {"rdp"}


def test_dp_fedavg_does_not_see_preferences() -> None:
    """Its columns are one set of runs: with other preferences the mechanism would be the same."""
    cells = [cell for cell in cells_of(EXPERIMENTS["preferences"], "fmnist") if cell.method.name == "dp-fedavg"]
    assert len({task_to_toml(cell.task) for cell in cells}) == 1
    task = cells[0].task
    other = next(cell.task for cell in cells_of(EXPERIMENTS["preferences"], "fmnist") if cell.column == "3:2:1"
                 and cell.method.name == "gdpfed+")  # fmt: skip
    (one,), (two,) = (make_plan(budgets, task.settings).groups for budgets in (task.budgets, other.budgets))
    free = {"mean_waste": 0.0, "max_waste": 0.0}
    assert dataclasses.replace(one, **free) == dataclasses.replace(two, **free)  # type: ignore[arg-type]


def test_the_papers_cells_come_first() -> None:
    for name in EXPERIMENTS:
        known = [cell.paper is not None for cell in cells_of(EXPERIMENTS[name], "cifar10")]
        assert known == sorted(known, reverse=True)


def test_scales() -> None:
    for dataset in PRESETS:
        full, smoke = (cells_of(EXPERIMENTS["main"], dataset, scale)[0].task for scale in (FULL, SMOKE))
        assert smoke.settings.num_rounds <= 10 < full.settings.num_rounds
        assert "smoke" in smoke.title
        assert len(smoke.budgets) == len(full.budgets)
    short = cells_of(EXPERIMENTS["main"], "svhn", Scale(num_rounds=7, participation=0.01))[0].task.settings
    assert (short.num_rounds, short.participation) == (7, 0.01)
    with pytest.raises(InputError, match="did you mean 'smoke'"):
        Scale(name="smok")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="did you mean 'clipping'"):
        experiment_of("cliping")


def test_passes_take_the_batches_of_a_clients_examples() -> None:
    """Of 12 or 13 images in tens on SVHN, of 83 or 84 in fifties on CIFAR-10: two batches a pass."""
    for dataset, steps in (("svhn", 25), ("cifar10", 5)):
        cells = {cell.column: cell.task.settings.local_steps for cell in cells_of(EXPERIMENTS["passes"], dataset)}
        assert cells == {"steps": steps, "passes": 2 * steps}


def test_widths_are_of_the_presets_network() -> None:
    """Half and twice of what the main table's run has, SVHN's width being its network's own."""
    for dataset, narrow, wide in (("svhn", 8, 32), ("cifar10", 4, 16)):
        found = {cell.column: cell.task.training for cell in cells_of(EXPERIMENTS["widths"], dataset)}
        assert found["1"] == load_task(dataset).training
        assert {training.model for training in found.values()} == {found["1"].model}
        assert (found["0.5"].model_width, found["2"].model_width) == (narrow, wide)
    by_itself, stated = (build_model("cnn3-batch", seed=1, **sizes) for sizes in ({}, {"width": 16}))
    assert [each.shape for each in by_itself.parameters()] == [each.shape for each in stated.parameters()]


def test_an_experiment_has_its_own_data_sets() -> None:
    found = {
        dataset: {cell.task.training.model for cell in cells_of(EXPERIMENTS["models"], dataset)} for dataset in PRESETS
    }
    assert found.pop("fmnist") == {"cnn2", "small-cnn", "cnn2-padded", "large-cnn"}
    assert set(map(len, found.values())) == {0}
