"""Named losses against PyTorch's own, and what they refuse."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from gdpfed.errors import InputError
from gdpfed.tasks.losses import CROSS_ENTROPY, LOSSES, loss_of, metric_values, metrics_of
from gdpfed.tasks.training_settings import LOSS_NAMES

GENERATOR = torch.Generator().manual_seed(0)


def test_the_names_are_those_of_the_settings() -> None:
    assert tuple(LOSSES) == LOSS_NAMES


def test_named_losses_are_pytorchs() -> None:
    outputs, targets = torch.randn(6, 3, generator=GENERATOR), torch.rand(6, 3, generator=GENERATOR).round()
    classes = torch.tensor([0, 1, 2, 0, 1, 2])
    for name, given, wanted in (
        ("cross-entropy", classes, functional.cross_entropy(outputs, classes)),
        ("mse", targets, functional.mse_loss(outputs, targets)),
        ("bce-with-logits", targets, functional.binary_cross_entropy_with_logits(outputs, targets)),
    ):
        torch.testing.assert_close(LOSSES[name].function(outputs, given).mean(), wanted)
    tokens, logits = torch.randint(0, 7, (4, 5), generator=GENERATOR), torch.randn(4, 5, 7, generator=GENERATOR)
    torch.testing.assert_close(
        LOSSES["next-token"].function(logits, tokens).mean(), functional.cross_entropy(logits.mT, tokens)
    )
    tokens[1, 3:] = -100
    torch.testing.assert_close(
        LOSSES["next-token"].function(logits, tokens)[1], functional.cross_entropy(logits[1, :3], tokens[1, :3])
    )


def test_right_answers() -> None:
    outputs = torch.tensor([[2.0, 1.0], [0.0, 3.0]])
    assert _right("cross-entropy", outputs, torch.tensor([0, 0])) == [1.0, 0.0]
    assert _right("bce-with-logits", outputs - 1.5, torch.tensor([[1.0, 1.0], [0.0, 1.0]])) == [0.5, 1.0]
    tokens = torch.tensor([[1, 0, -100]])
    assert _right("next-token", torch.tensor([[[0.0, 1.0], [0.0, 1.0], [1.0, 0.0]]]), tokens) == [0.5]
    assert LOSSES["mse"].right(outputs, outputs) is None
    own = loss_of(lambda scores, targets: functional.cross_entropy(scores, targets))
    assert own.right(outputs, torch.tensor([0, 1])).tolist() == [1.0, 1.0]  # type: ignore[union-attr]
    assert own.right(outputs, outputs) is None


def _right(name: str, outputs: Tensor, targets: Tensor) -> list[float]:
    shares = LOSSES[name].right(outputs, targets)
    assert shares is not None
    found: list[float] = shares.tolist()
    return found


def test_float_labels_are_no_classes() -> None:
    for kind in (torch.float32, torch.float64, torch.float16):
        with pytest.raises(InputError, match=r"whole numbers as classes, got float\d\d in client 3: .*'mse'"):
            CROSS_ENTROPY.targets(torch.tensor([0, 1], dtype=kind), where="in client 3")
    for kind in (torch.int32, torch.uint8, torch.bool):
        assert CROSS_ENTROPY.targets(torch.tensor([0, 1], dtype=kind), where="here").dtype == torch.int64
    assert CROSS_ENTROPY.targets(torch.tensor([[0], [1]]), where="here").tolist() == [0, 1]
    with pytest.raises(InputError, match="bce-with-logits"):
        CROSS_ENTROPY.targets(torch.tensor([[0, 1]]), where="here")
    with pytest.raises(InputError, match="from 0 to 1"):
        LOSSES["bce-with-logits"].targets(torch.tensor([[2.0]]), where="here")
    assert LOSSES["mse"].targets(torch.tensor([1.5], dtype=torch.float64), where="here").dtype == torch.float32


def test_targets_fit_the_model() -> None:
    with pytest.raises(InputError, match=r"returns \(batch, classes\), got the shape \(2,\)"):
        CROSS_ENTROPY.check(torch.zeros(2), torch.tensor([0, 1]))
    with pytest.raises(InputError, match="labels below 3"):
        CROSS_ENTROPY.check(torch.zeros(2, 3), torch.tensor([0, 1]), most=3)
    with pytest.raises(InputError, match="one shape"):
        # It would broadcast to (2, 2), quietly.
        LOSSES["mse"].check(torch.zeros(2, 3), torch.zeros(2))
    assert LOSSES["mse"].check(torch.zeros(2, 1), torch.zeros(2)).function(torch.ones(2, 1), torch.zeros(2)).shape == (
        2,
    )
    with pytest.raises(InputError, match="a tensor, got tuple"):
        CROSS_ENTROPY.check((torch.zeros(2, 3),), torch.tensor([0, 1]))
    with pytest.raises(InputError, match=r"fails on outputs of \(2, 3\)"):
        loss_of(nn.functional.mse_loss).check(torch.zeros(2, 3), torch.zeros(2, 5))
    with pytest.raises(InputError, match="one for each of 2 examples"):
        loss_of(lambda outputs, _: outputs).check(torch.zeros(2, 3), torch.zeros(2))
    assert loss_of(nn.MSELoss()).check(torch.zeros(2, 3), torch.zeros(2, 3)).is_mean


def test_losses_and_metrics_by_name() -> None:
    assert loss_of("torch.nn.functional:huber_loss").name.endswith(":huber_loss")
    for wrong, named in (("crossentropy", "did you mean 'cross-entropy'"), ("torch.nn:nothing", "'nothing'")):
        with pytest.raises(InputError, match=named):
            loss_of(wrong)
    with pytest.raises(InputError, match="cannot import the loss"):
        loss_of("no_such_package:loss")
    with pytest.raises(InputError, match="expected a loss's name"):
        loss_of(3)  # type: ignore[arg-type]
    found = metrics_of(["torch.nn.functional:l1_loss"])
    assert metric_values(found, torch.ones(2), torch.zeros(2)) == {"l1_loss": 1.0}
    assert metric_values({"none": lambda *_: float("nan")}, torch.ones(2), torch.zeros(2)) == {"none": 1e300}
    for metrics, named in (
        ({"loss": len}, "choose another name"),
        ({"x": 3}, "a function"),
        (["l1"], "package.module"),
    ):
        with pytest.raises(InputError, match=named):
            metrics_of(metrics)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="the metric 'bad' fails"):
        metric_values({"bad": lambda *_: 1 / 0}, torch.ones(2), torch.zeros(2))
