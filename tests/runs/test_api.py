from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import gdpfed
from gdpfed.errors import InputError, PrivacyError
from gdpfed.ledger.book import Ledger
from gdpfed.report.load import load_report
from gdpfed.runs.folder import open_run
from gdpfed.runs.simulate import simulate
from gdpfed.training.rounds import RoundRecord

pytestmark = pytest.mark.training


def clients(count: int, generator: torch.Generator) -> list[tuple[torch.Tensor, torch.Tensor]]:
    made = []
    for _ in range(count):
        inputs = torch.randn(8, 5, generator=generator)
        made.append((inputs, (inputs[:, 0] > 0).long()))
    return made


def test_own_model_and_data() -> None:
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(5, 2))
    before = [parameter.clone() for parameter in model.parameters()]
    test = clients(1, generator)[0]
    arguments = {
        "model": model,
        "clients": clients(200, generator),
        "budgets": gdpfed.parse_compact("100@2,100@8"),
        "settings": gdpfed.PlanSettings(method="pooled", num_rounds=15, participation=0.3),
        "local": gdpfed.LocalTraining(learning_rate=0.5, batch_size=4, local_steps=3),
        "test": test,
    }
    trained = gdpfed.train(seed=1, num_workers=2, **arguments)  # type: ignore[arg-type]
    assert len(trained.accuracies) == len(trained.records) == 15
    assert trained.accuracies[-1] >= 85
    # The model that was handed in is left as it was; the same seed gives the same model.
    assert all(torch.equal(one, other) for one, other in zip(before, model.parameters(), strict=True))
    again = gdpfed.train(seed=1, num_workers=1, **arguments)  # type: ignore[arg-type]
    for one, other in zip(trained.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_a_norm_is_never_asked_about_one_example() -> None:
    """Test sets are judged in batches of 250; what a norm makes of the last example alone would be an error."""
    generator = torch.Generator().manual_seed(0)
    norm = torch.nn.BatchNorm1d(4, track_running_stats=False)
    inputs = torch.randn(251, 5, generator=generator)
    trained = gdpfed.train(
        model=torch.nn.Sequential(torch.nn.Linear(5, 4), norm, torch.nn.Linear(4, 2)),
        clients=clients(20, generator),
        budgets=gdpfed.parse_compact("20@8"),
        settings=gdpfed.PlanSettings(method="pooled", num_rounds=2, participation=0.3),
        local=gdpfed.LocalTraining(learning_rate=0.5, batch_size=4, local_steps=3),
        test=(inputs, (inputs[:, 0] > 0).long()),
        seed=1,
        num_workers=1,
    )
    assert len(trained.accuracies) == 2


def test_refusals() -> None:
    generator = torch.Generator().manual_seed(0)
    normed = torch.nn.Sequential(torch.nn.Linear(5, 2), torch.nn.BatchNorm1d(2))
    settings = gdpfed.PlanSettings(method="dp-fedavg", num_rounds=1, participation=0.5)
    with pytest.raises(PrivacyError, match="GroupNorm"):
        gdpfed.train(
            model=normed,
            clients=clients(50, generator),
            budgets=gdpfed.parse_compact("50@1"),
            seed=1,
            settings=settings,
        )
    with pytest.raises(InputError, match="budget for each of 40 clients"):
        gdpfed.train(
            model=torch.nn.Linear(5, 2), clients=clients(40, generator), budgets=gdpfed.parse_compact("50@1"), seed=1
        )
    empty = [*clients(49, generator), (torch.empty(0, 5), torch.empty(0, dtype=torch.long))]
    with pytest.raises(InputError, match="client 49"):
        gdpfed.train(
            model=torch.nn.Linear(5, 2), clients=empty, budgets=gdpfed.parse_compact("50@1"), seed=1, settings=settings
        )


def small_run(**changes: object) -> dict[str, object]:
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    return {
        "model": torch.nn.Linear(5, 2),
        "clients": clients(60, generator),
        "budgets": gdpfed.parse_compact("30@2,30@8"),
        "settings": gdpfed.PlanSettings(method="gdpfed", num_rounds=5, participation=0.5),
        "test": clients(1, generator)[0],
        "seed": 3,
        "num_workers": 1,
        **changes,
    }


def stopped_after(rounds: int) -> Callable[[RoundRecord], None]:
    def watch(record: RoundRecord) -> None:
        if record.round_number + 1 == rounds:
            raise KeyboardInterrupt

    return watch


@pytest.mark.parametrize("secure", [False, True])
def test_a_library_run_is_resumed(tmp_path: Path, secure: bool) -> None:
    """In a folder, charged to a ledger, with secure sums or without; stopped twice: the same bytes as in one go."""
    how = {"secure": secure, "dropout": 0.1 if secure else 0.0}
    for name in ("one", "two"):
        with Ledger.create(tmp_path / f"{name}.book") as book:
            book.add_population("people", gdpfed.parse_compact("30@2.5,30@9"))
    given = small_run(**how, folder=tmp_path / "one", ledger=tmp_path / "one.book")
    whole = gdpfed.train(**given)  # type: ignore[arg-type]
    cut = small_run(**how, folder=tmp_path / "two", ledger=tmp_path / "two.book")
    for rounds in (1, 3):
        with pytest.raises(KeyboardInterrupt):
            gdpfed.train(**cut, watch=stopped_after(rounds))  # type: ignore[arg-type]
    resumed = gdpfed.train(**cut)  # type: ignore[arg-type]
    assert resumed.accuracies == whole.accuracies
    assert len(whole.records) == 5
    assert len(resumed.records) == 2
    for name in ("records.jsonl", "model.safetensors", "plan.toml"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    for name in ("one", "two"):
        assert Ledger.read(tmp_path / f"{name}.book").state.run(name).charged == [5, 5]
    # Once more: it is finished, and nothing is charged or trained.
    again = gdpfed.train(**cut)  # type: ignore[arg-type]
    assert again.records == ()
    assert torch.equal(again.model.weight, resumed.model.weight)  # type: ignore[arg-type]
    # The report and the list of runs read it.
    assert load_report([tmp_path / "one"]).methods[0].accuracies == (whole.accuracies[-1],)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"seed": 4}, "seed"),
        ({"model": torch.nn.Linear(5, 2)}, "model"),
        ({"clients": clients(60, torch.Generator().manual_seed(9))}, "clients"),
        ({"settings": gdpfed.PlanSettings(method="gdpfed", num_rounds=6, participation=0.5)}, "plan"),
        ({"local": gdpfed.LocalTraining(learning_rate=0.7)}, "local"),
        ({"evaluate_every": 2}, "training"),
    ],
)
def test_another_library_run_is_refused(tmp_path: Path, change: dict[str, object], named: str) -> None:
    given = small_run(folder=tmp_path / "run")
    with pytest.raises(KeyboardInterrupt):
        gdpfed.train(**given, watch=stopped_after(1))  # type: ignore[arg-type]
    with pytest.raises(InputError, match=f"another .*{named}"):
        gdpfed.train(**{**given, **change})  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"a run of gdpfed\.train"):
        simulate(open_run(tmp_path / "run"), num_workers=1)


def test_a_loop_without_a_folder_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    bare = gdpfed.train(**small_run())  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []
    kept = gdpfed.train(**small_run(folder="run"))  # type: ignore[arg-type]
    assert torch.equal(bare.model.weight, kept.model.weight)  # type: ignore[arg-type]
    assert bare.records == kept.records
    assert bare.accuracies == kept.accuracies


def test_a_ledger_needs_a_folder_and_a_budget(tmp_path: Path) -> None:
    with Ledger.create(tmp_path / "book") as book:
        book.add_population("people", gdpfed.parse_compact("30@0.5,30@0.5"))
    with pytest.raises(InputError, match="folder="):
        gdpfed.train(**small_run(ledger=tmp_path / "book"))  # type: ignore[arg-type]
    with pytest.raises(PrivacyError):
        gdpfed.train(**small_run(ledger=tmp_path / "book", folder=tmp_path / "run"))  # type: ignore[arg-type]
    assert not (tmp_path / "run").exists()
