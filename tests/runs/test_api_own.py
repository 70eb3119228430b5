"""`gdpfed.train` on what people have: data of every kind, losses, metrics, dropout, frozen layers, plans, folders."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import gdpfed
from gdpfed.errors import InputError, PrivacyError
from gdpfed.report.load import load_report
from gdpfed.runs.api import RoundDone
from gdpfed.runs.folder import open_run
from gdpfed.tasks.features import Scattering

pytestmark = pytest.mark.training

SETTINGS = gdpfed.PlanSettings(method="gdpfed", num_rounds=3, participation=0.5, delta=1e-3)


def numbers(count: int = 41) -> list[tuple[Tensor, Tensor]]:
    """Clients, and a test set as the last: eight rows of five numbers, and whether the first is positive."""
    generator = torch.Generator().manual_seed(0)
    inputs = [torch.randn(8, 5, generator=generator) for _ in range(count)]
    return [(rows, (rows[:, 0] > 0).long()) for rows in inputs]


def given(**changes: Any) -> dict[str, Any]:
    torch.manual_seed(0)
    *clients, test = numbers()
    return {
        "model": nn.Linear(5, 2), "clients": clients, "test": test, "budgets": "20@2,20@8", "settings": SETTINGS,
        "seed": 3, "num_workers": 1, **changes,
    }  # fmt: skip


def test_people_have_many_things(tmp_path: Path) -> None:
    expected = gdpfed.train(**given())
    *pairs, test = numbers()
    arrays = [(inputs.numpy(), labels.numpy()) for inputs, labels in pairs]
    file = tmp_path / "clients.csv"
    rows = [f"c{number},{2 if number < 20 else 8}" for number in range(40)]
    file.write_text("\n".join(["client,epsilon", *rows]))
    for changes in (
        {"clients": arrays, "test": (test[0].numpy(), test[1].numpy())},
        {"clients": [TensorDataset(*pair) for pair in pairs]},
        {"clients": [{"x": inputs.double(), "y": labels} for inputs, labels in pairs]},
        {"budgets": file, "clients": {f"c{number}": pair for number, pair in enumerate(pairs)}},
        {"budgets": str(file)},
        {"budgets": gdpfed.parse_compact("20@2,20@8")},
    ):
        found = gdpfed.train(**given(**changes))
        assert torch.equal(found.model.weight, expected.model.weight), changes  # type: ignore[arg-type]
        assert found.accuracies == expected.accuracies
    double = gdpfed.train(**given(model=given()["model"].double()))
    assert double.model.weight.dtype == torch.float64
    assert torch.equal(double.model.weight.float(), expected.model.weight)  # type: ignore[arg-type, operator]


def test_regression_with_own_metrics(tmp_path: Path) -> None:
    """Numbers as targets: the loss falls, the metric is recorded, the report can be made and says what it shows."""
    generator = torch.Generator().manual_seed(1)
    inputs = [torch.randn(8, 5, generator=generator) for _ in range(201)]
    pairs = [(rows, 3 * rows[:, 0] + 1) for rows in inputs]
    torch.manual_seed(0)
    trained = gdpfed.train(
        model=nn.Linear(5, 1),
        clients=pairs[:-1],
        test=pairs[-1],
        budgets="200@8",
        settings=gdpfed.PlanSettings(method="dp-fedavg", num_rounds=10, participation=0.5),
        local=gdpfed.LocalTraining(learning_rate=0.1),
        loss="mse",
        metrics={"absolute error": lambda outputs, targets: (outputs[:, 0] - targets).abs().mean()},
        seed=1,
        num_workers=1,
        out=tmp_path / "run",
    )
    assert trained.losses[-1] < 0.5 * trained.losses[0]
    assert trained.metrics["absolute error"][-1] < trained.metrics["absolute error"][0]
    assert 0 < trained.accuracies[0] < trained.accuracies[-1] <= 100
    record = open_run(tmp_path / "run").checked_records()[-1]
    assert record.metrics == {"absolute error": trained.metrics["absolute error"][-1]}
    assert record.measure == "less loss than untrained"
    data = load_report([tmp_path / "run"])
    assert data.methods[0].mean == record.accuracy
    page = gdpfed.report_html(data).replace("\xa0", " ")
    assert f"{record.accuracy:.1f} % less loss than untrained" in page
    assert "test accuracy" not in page.lower()


def test_labels_and_own_losses() -> None:
    *pairs, test = numbers()

    def several(pair: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return pair[0], (pair[0][:, :3] > 0).long()

    labels = gdpfed.train(
        **given(model=nn.Linear(5, 3), clients=list(map(several, pairs)), test=several(test), loss="bce-with-logits")
    )
    assert 0 < labels.accuracies[-1] <= 100
    # A mean of one's own that is cross-entropy gives what cross-entropy gives, but for rounding.
    plain = gdpfed.train(**given())
    own = gdpfed.train(**given(loss=nn.CrossEntropyLoss()))
    torch.testing.assert_close(own.model.weight, plain.model.weight, rtol=1e-4, atol=1e-5)
    assert own.accuracies == plain.accuracies
    smooth = gdpfed.train(**given(loss=lambda outputs, targets: nn.functional.cross_entropy(
        outputs, targets, reduction="none", label_smoothing=0.1
    )))  # fmt: skip
    assert not torch.equal(smooth.model.weight, plain.model.weight)  # type: ignore[arg-type]


class Letters(nn.Module):
    """A small transformer of stock layers, with their dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(9, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.2, batch_first=True)
        self.output = nn.Linear(8, 9)

    def forward(self, tokens: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        logits: Tensor = self.output(self.layer(self.embed(tokens), src_mask=mask, is_causal=True))
        return logits


def test_a_stock_transformer_learns_tokens() -> None:
    """Dropout is seeded by client and step: the same bytes for one worker and two; another seed, another model."""
    generator = torch.Generator().manual_seed(2)
    start = torch.randint(0, 9, (41, 6, 1), generator=generator)
    tokens = (start + torch.arange(8)) % 9
    torch.manual_seed(0)
    model = Letters()
    how = given(
        model=model,
        clients=list(tokens[:40]),
        test=tokens[40],
        loss="next-token",
        settings=gdpfed.PlanSettings(method="fedavg", num_rounds=12, participation=0.5),
        local=gdpfed.LocalTraining(learning_rate=0.5, local_steps=4),
    )
    one = gdpfed.train(**how)
    two = gdpfed.train(**how | {"num_workers": 2})
    for mine, theirs in zip(one.model.parameters(), two.model.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    assert one.accuracies[-1] > 60
    assert one.model.training
    still = gdpfed.train(**how | {"model": model.eval()})
    assert not torch.equal(still.model.output.weight, one.model.output.weight)  # type: ignore[union-attr, arg-type]


def test_frozen_layers_are_as_they_were(tmp_path: Path) -> None:
    """Wherever they stand; a frozen first part is computed once; what is saved is the whole model."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 2))
    for place in (0, 2):
        for parameter in model.parameters():
            parameter.requires_grad_(True)
        model[place].requires_grad_(False)
        seen = []
        handle = model[0].register_forward_hook(lambda *_, seen=seen: seen.append(1))
        trained = gdpfed.train(**given(model=model, out=tmp_path / f"run{place}"))
        handle.remove()
        assert torch.equal(trained.model[place].weight, model[place].weight)  # type: ignore[index]
        assert not torch.equal(trained.model[2 - place].weight, model[2 - place].weight)  # type: ignore[index]
        # 320 examples in batches of 250, and the test set: once for all rounds.
        assert place == 2 or len(seen) == 3
        from safetensors.torch import load_file

        saved = load_file(str(tmp_path / f"run{place}" / "model.safetensors"))
        assert torch.equal(saved["2.weight"], trained.model[2].weight)  # type: ignore[index]
        assert torch.equal(saved["0.weight"], trained.model[0].weight)  # type: ignore[index]


def test_fixed_features_are_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(5)
    pairs = [
        (torch.randn(3, 1, 12, 12, generator=generator), torch.randint(0, 2, (3,), generator=generator))
        for _ in range(41)
    ]
    made: list[int] = []
    rounded = Scattering.rounded

    def counted(self: Scattering, images: Tensor) -> Tensor:
        made.append(len(images))
        return rounded(self, images)

    monkeypatch.setattr(Scattering, "rounded", counted)
    model = nn.Sequential(Scattering(), nn.Linear(Scattering.num_features(12), 2))
    trained = gdpfed.train(**given(model=model, clients=pairs[:-1], test=pairs[-1]))
    assert sum(made) == 41 * 3
    assert isinstance(trained.model[0], Scattering)  # type: ignore[index]
    assert trained.model(pairs[0][0]).shape == (3, 2)
    assert not torch.equal(trained.model[1].weight, model[1].weight)  # type: ignore[index]


def test_a_plan_made_before(tmp_path: Path) -> None:
    budgets = gdpfed.parse_compact("20@2,20@8")
    plan = gdpfed.make_plan(budgets, SETTINGS)
    gdpfed.save_plan(plan, tmp_path / "plan.toml")
    expected = gdpfed.train(**given())
    for one in (plan, tmp_path / "plan.toml"):
        found = gdpfed.train(**given(plan=one, settings=None))
        assert found.plan == plan
        assert torch.equal(found.model.weight, expected.model.weight)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="got both"):
        gdpfed.train(**given(plan=plan))
    with pytest.raises(PrivacyError):
        gdpfed.train(**given(plan=plan, settings=None, budgets="20@1,20@8"))


def test_watching_and_folders(tmp_path: Path) -> None:
    seen: list[RoundDone] = []
    models: list[Tensor] = []

    def watch(done: RoundDone) -> None:
        seen.append(done)
        models.append(done.model.weight.detach().clone())  # type: ignore[operator, union-attr]

    trained = gdpfed.train(
        **given(watch=watch, out=tmp_path / "run", evaluate_every=2, metrics={"mean": lambda out, _: out.mean()})
    )
    assert [done.round_number for done in seen] == [0, 1, 2]
    assert [done.accuracy is None for done in seen] == [True, False, False]
    assert seen[1].metrics is not None
    assert seen[1].metrics["mean"] == trained.metrics["mean"][0]
    assert seen[0].epsilons < seen[2].epsilons == trained.epsilons
    assert torch.equal(models[-1], trained.model.weight)  # type: ignore[arg-type]
    assert not torch.equal(models[0], models[1])
    assert list((tmp_path / "run" / "events").iterdir())
    with pytest.raises(InputError, match=r"another .*metrics"):
        gdpfed.train(**given(out=tmp_path / "run", evaluate_every=2))
    with pytest.raises(InputError, match="got both"):
        gdpfed.train(**given(out=tmp_path / "run", folder=tmp_path / "run"))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"test": (torch.empty(0, 5), torch.empty(0, dtype=torch.long))}, "at least one example in the test set"),
        ({"test": (torch.zeros(2, 4), torch.zeros(2).long())}, "test inputs of"),
        ({"loss": "mean"}, "a loss among"),
        ({"seed": -1}, "seed >= 0"),
        ({"budgets": "nowhere.csv"}, "nowhere.csv"),
        ({"clients": [(torch.zeros(2, 5), torch.zeros(2))] * 40}, "whole numbers as classes, got float32"),
        ({"clients": [(torch.zeros(2, 5).long(), torch.zeros(2).long())] * 40}, "test inputs of"),
        ({"model": nn.Linear(4, 2)}, "fails on the first example, of shape"),
        ({"population": "people"}, "give ledger="),
        ({"out": __file__}, "which is a file"),
    ],
)
def test_what_cannot_be_trained_is_refused_and_leaves_nothing(
    tmp_path: Path, changes: dict[str, Any], named: str
) -> None:
    with pytest.raises(InputError, match=named):
        gdpfed.train(**{**given(out=tmp_path / "run"), **changes})
    assert not (tmp_path / "run").exists()


def test_numpy_stays_numpy() -> None:
    """Arrays of the caller are not written to."""
    inputs = np.random.default_rng(0).normal(size=(40, 8, 5))
    inputs.flags.writeable = False
    labels = (inputs[:, :, 0] > 0).astype(np.int32)
    before = inputs.copy()
    gdpfed.train(**given(clients=list(zip(inputs, labels, strict=True)), test=(inputs[0], labels[0])))
    assert np.array_equal(before, inputs)
