import pytest

from gdpfed.errors import InputError, MissingExtraError
from gdpfed.planning.settings import PlanSettings
from gdpfed.report.paper import paper_tables
from gdpfed.tasks.task import PRESETS, load_task
from gdpfed_reproduce.experiment_plots import plot_sampling_sweep
from gdpfed_reproduce.without_training import check_datasets, noise_table, sampling_sweep, sampling_table


def test_presets_are_the_papers_configurations() -> None:
    for name in PRESETS:
        task, printed = load_task(name), paper_tables()["configurations"][name]
        assert len(task.budgets) == printed["clients"]
        assert sorted(set(task.budgets.epsilons)) == printed["epsilons"]
        assert task.settings.num_rounds == printed["rounds"]
        assert task.settings.clip_norm == printed["clip_norm"]
        assert 100 * task.settings.participation == pytest.approx(printed["participation_percent"])
        assert task.settings.local_steps == printed["local_iterations"]
        assert task.settings.learning_rate == paper_tables()["configurations"]["common"]["learning_rate"]
    assert PlanSettings().num_rounds == 50


def test_sampling_table() -> None:
    rows = {row.dataset: row for row in sampling_table()}
    assert list(rows) == ["FMNIST", "SVHN", "CIFAR-10", "Shakespeare"]
    for row in rows.values():
        assert row.numeric == pytest.approx(row.closed_form, rel=1e-4)
        # The paper's solver was near, and never better.
        assert row.objective_gap > 0
        assert max(abs(difference) for difference in row.difference) < 2.5


@pytest.mark.training
def test_noise_table_is_the_papers() -> None:
    """With RDP every printed figure of both data sets is met to its rounding (0.01) or 1 %."""
    rows = noise_table(["fmnist", "cifar10"])
    assert len(rows) == 16
    for row in rows:
        assert row.paper_variances is not None
        assert row.paper_magnitude is not None
        if row.accountant == "rdp":
            assert row.noise_variances == pytest.approx(row.paper_variances, rel=0.01, abs=0.005)
            assert row.magnitude == pytest.approx(row.paper_magnitude, rel=0.01, abs=0.005)
        else:
            assert row.largest_difference is not None
            assert row.largest_difference < -0.1


def test_sweep_meets_where_budgets_are_equal() -> None:
    for line in sampling_sweep(num_points=10):
        place = line.strictest_epsilons.index(line.fixed_epsilons[0])
        assert line.rates[0][place] == pytest.approx(line.rates[1][place])
        assert list(line.rates[0]) == sorted(line.rates[0])
        assert list(line.rates[2]) == sorted(line.rates[2], reverse=True)


def test_unknown_dataset_is_refused() -> None:
    with pytest.raises(InputError, match="did you mean 'svhn'"):
        check_datasets(["svnh"])


def test_without_matplotlib_the_message_says_how(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtraError, match=r"gdpfed\[plots\]"):
        plot_sampling_sweep(sampling_sweep(num_points=5))
