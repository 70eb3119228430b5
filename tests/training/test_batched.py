"""Many models in one pass, against the modules themselves."""

import copy
import math
import platform
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gdpfed.errors import InputError
from gdpfed.tasks.losses import CROSS_ENTROPY, loss_of
from gdpfed.tasks.models import CharLSTM, build_model
from gdpfed.training.clients.batched import BatchedModel, _AnyModule, batched_model
from gdpfed.training.clients.layers import LayeredModel
from gdpfed.training.clients.normed import NormedModel

CLIENTS, BATCH = 4, 3


def images(*shape: int) -> Tensor:
    return torch.randn(CLIENTS, BATCH, *shape, generator=torch.Generator().manual_seed(1))


def characters() -> Tensor:
    return torch.randint(0, 11, (CLIENTS, BATCH, 9), generator=torch.Generator().manual_seed(1))


class Residual(nn.Module):
    """Not a Sequential, with a parameter of its own, one that is never used, and one that is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(12, 12)
        self.gain = nn.Parameter(torch.tensor(0.7))
        self.unused = nn.Linear(3, 3)
        self.norm = nn.LayerNorm(12)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = inputs + self.gain * torch.tanh(self.dense(inputs))
        return self.norm(torch.sigmoid(self.dense(hidden)))[:, :5]


class Recurrent(nn.Module):
    """What vmap cannot do."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTM(4, 6, batch_first=True)
        self.output = nn.Linear(6, 5)

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.output(self.cell(inputs)[0][:, -1])
        return logits


def stacked(model: nn.Module, *, seed: int = 2) -> list[Tensor]:
    """Different parameters for every client."""
    generator = torch.Generator().manual_seed(seed)
    return [
        (parameter.detach() + 0.1 * torch.randn(CLIENTS, *parameter.shape, generator=generator)).requires_grad_()
        for parameter in model.parameters()
    ]


def check_equal(model: nn.Module, inputs: Tensor, *, dtype: torch.dtype = torch.float64, whole: bool = False) -> None:
    """Gradients of the batched model, and of the module client by client; in float64, where another order of additions
    shows only in the last digits. Twice in a row, the second time with other images: buffers are used again."""
    model = copy.deepcopy(model).to(dtype)
    inputs = inputs.to(dtype) if inputs.is_floating_point() else inputs
    parameters = [part.detach().to(dtype) for part in stacked(model)]
    if whole:
        parameters = [part.mul(10).round() for part in parameters]
    num_classes = model(inputs[0]).shape[1]
    labels = torch.randint(0, num_classes, (CLIENTS, BATCH), generator=torch.Generator().manual_seed(3))
    weights = torch.linspace(0.1, 1, CLIENTS * BATCH, dtype=dtype).view(CLIENTS, BATCH)
    together = batched_model(model)
    tolerance = {"rtol": 1e-9, "atol": 1e-10} if dtype == torch.float64 else {"rtol": 1e-4, "atol": 1e-5}
    for given in (inputs, inputs.flip(0)):
        prepared = together.prepare(given)
        for _ in range(2):
            gradients = together.gradients(parameters, prepared, labels, weights)
        for client in range(CLIENTS):
            single = copy.deepcopy(model)
            for own, part in zip(single.parameters(), parameters, strict=True):
                own.data.copy_(part[client])
            losses = nn.functional.cross_entropy(single(given[client]), labels[client], reduction="none")
            of_single = torch.autograd.grad(
                (losses * weights[client]).sum(), list(single.parameters()), materialize_grads=True
            )
            for mine, theirs in zip(gradients, of_single, strict=True):
                torch.testing.assert_close(mine[client], theirs, **tolerance)


def convolutions(*layers: nn.Module, flat: int) -> nn.Module:
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(flat, 5))


def norm(channels: int, eps: float = 1e-5) -> nn.Module:
    return nn.BatchNorm2d(channels, eps=eps, track_running_stats=False)


def normed_cnn3(width: int = 2) -> nn.Module:
    """A public CNN with norms and without biases."""
    layers: list[nn.Module] = []
    for before, after in ((3, width), (width, 2 * width), (2 * width, 4 * width)):
        layers += [nn.Conv2d(before, after, 3, bias=False), norm(after), nn.ReLU(), nn.MaxPool2d(2)]
    dense = [nn.Linear(16 * width, 12, bias=False), nn.ReLU(), nn.Linear(12, 5, bias=False)]
    return nn.Sequential(*layers, nn.Flatten(), *dense)


def some_normed() -> nn.Module:
    """Odd sizes, padded; norms after a convolution with a bias, after one without, and none."""
    return convolutions(
        nn.Conv2d(1, 3, 3, padding=1),
        norm(3, eps=0.1),
        nn.MaxPool2d(2),
        nn.Conv2d(3, 4, 2, bias=False),
        nn.ReLU(),
        nn.Conv2d(4, 3, 2, padding=1, bias=False),
        norm(3),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(3, 3, 2, padding=1),
        norm(3),
        flat=3 * 4 * 5,
    )


def late_norm() -> nn.Module:
    return convolutions(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(2, 3, 2), norm(3), nn.ReLU(), flat=12)


SHARED_RELU = nn.ReLU()

LAYERS: dict[str, tuple[Callable[[], nn.Module], Tensor]] = {
    "small-cnn": (lambda: build_model("small-cnn", seed=0), images(1, 28, 28)),
    "cnn3, padded": (lambda: build_model("cnn3", seed=0), images(3, 32, 32)),
    "no pool": (
        lambda: convolutions(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.Conv2d(3, 2, 2, padding=1), flat=2 * 7 * 7),
        images(2, 8, 8),
    ),
    "no ReLU": (lambda: convolutions(nn.Conv2d(1, 3, 3), nn.MaxPool2d(2), flat=3 * 3 * 3), images(1, 8, 8)),
    "odd sizes": (
        lambda: convolutions(
            nn.Conv2d(1, 3, 3),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(3, 4, 2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            flat=4 * 2 * 3,
        ),
        images(1, 13, 17),
    ),
    "pool, then ReLU": (
        lambda: convolutions(nn.Conv2d(1, 3, 3), nn.MaxPool2d(2), nn.ReLU(), flat=3 * 3 * 3),
        images(1, 8, 8),
    ),
    "flat images, with ties everywhere": (
        lambda: convolutions(
            nn.Conv2d(1, 3, 3, padding=1),
            nn.MaxPool2d(2),
            nn.Conv2d(3, 2, 3, padding=1),
            nn.MaxPool2d(2),
            flat=2 * 2 * 2,
        ),
        torch.ones(CLIENTS, BATCH, 1, 8, 8),
    ),
    "dense layer with ReLU last": (
        lambda: nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(32, 5), nn.ReLU()),
        images(1, 6, 6),
    ),
    "one ReLU, twice": (
        lambda: convolutions(nn.Conv2d(1, 3, 3), SHARED_RELU, nn.Conv2d(3, 2, 3), SHARED_RELU, flat=2 * 4 * 4),
        images(1, 8, 8),
    ),
    "without biases": (
        lambda: nn.Sequential(
            nn.Conv2d(1, 3, 3, bias=False),
            nn.Conv2d(3, 2, 3, bias=False),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(8, 6, bias=False),
            nn.ReLU(),
            nn.Linear(6, 6),
            nn.Linear(6, 5, bias=False),
        ),
        images(1, 8, 8),
    ),
}
NORMED: dict[str, tuple[Callable[[], nn.Module], Tensor]] = {
    "norms": (normed_cnn3, images(3, 32, 32)),
    "some norms": (some_normed, images(1, 13, 17)),
    "a late norm": (late_norm, images(1, 8, 8)),
    "images far from zero": (late_norm, 50 + images(1, 8, 8)),
}
ANY: dict[str, tuple[Callable[[], nn.Module], Tensor]] = {
    "Linear only": (lambda: nn.Sequential(nn.Flatten(), nn.Linear(12, 7), nn.ReLU(), nn.Linear(7, 5)), images(3, 4)),
    "arbitrary module": (Residual, images(12)),
    "CharLSTM": (lambda: CharLSTM(num_classes=11, embedding=3, hidden=5), characters()),
    "nn.LSTM": (Recurrent, images(6, 4)),
    "strided": (lambda: convolutions(nn.Conv2d(1, 3, 3, stride=2), nn.ReLU(), flat=27), images(1, 8, 8)),
    "resnet": (lambda: build_model("resnet18", seed=0, width=4), images(3, 8, 8)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers_equal_autograd(name: str) -> None:
    make, inputs = LAYERS[name]
    model = make()
    assert isinstance(batched_model(model), LayeredModel)
    check_equal(model, inputs)


@pytest.mark.parametrize("name", NORMED)
def test_norms_equal_autograd(name: str) -> None:
    make, inputs = NORMED[name]
    model = make()
    assert isinstance(batched_model(model), NormedModel)
    check_equal(model, inputs)


@pytest.mark.parametrize("name", ANY)
def test_batched_equals_single(name: str) -> None:
    make, inputs = ANY[name]
    model = make()
    assert isinstance(batched_model(model), _AnyModule)
    check_equal(model, inputs)


# What is far from zero has other digits in every order of additions.
IN_FLOAT32 = ("small-cnn", "cnn3, padded", "CharLSTM", "norms", "some norms", "a late norm", "without biases")


@pytest.mark.parametrize("name", IN_FLOAT32)
def test_batched_equals_single_in_float32(name: str) -> None:
    make, inputs = {**LAYERS, **NORMED, **ANY}[name]
    check_equal(make(), inputs, dtype=torch.float32)


@pytest.mark.parametrize(("edge", "is_alone"), [(16, False), (72, True)])
def test_large_images_go_alone(edge: int, is_alone: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Same gradients; and by another way, since a ResNet takes a third longer by the wrong one."""
    taken: list[bool] = []
    alone = _AnyModule._alone

    def watched(*arguments: Any) -> Sequence[Tensor]:
        taken.append(True)
        return alone(*arguments)

    monkeypatch.setattr(_AnyModule, "_alone", watched)
    layers = [nn.Conv2d(2, 3, 3, padding=1), nn.Tanh(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 5)]
    check_equal(nn.Sequential(*layers), images(2, edge, edge))
    assert bool(taken) == is_alone


class LooksByView(nn.Module):
    """Flattens images, and looks at kernels, in a way that one order of memory alone allows."""

    def __init__(self, *, kernels: bool) -> None:
        super().__init__()
        self.kernels = kernels
        self.conv, self.dense = nn.Conv2d(2, 3, 3, padding=1), nn.Linear(3 * 36, 5)

    def forward(self, inputs: Tensor) -> Tensor:
        kernels = self.conv.weight
        if self.kernels:
            kernels = kernels - kernels.view(len(kernels), -1).mean(1)[:, None, None, None]
        maps = nn.functional.avg_pool2d(nn.functional.conv2d(inputs, kernels, padding=1), 12)
        logits: Tensor = self.dense(maps.flatten(1) if self.kernels else maps.view(len(maps), -1))
        return logits


@pytest.mark.parametrize("kernels", [True, False])
def test_any_order_of_memory(kernels: bool) -> None:
    model = LooksByView(kernels=kernels)
    with pytest.raises(RuntimeError, match="view size is not compatible"):
        copy.deepcopy(model).to(memory_format=torch.channels_last)(
            images(2, 72, 72)[0].contiguous(memory_format=torch.channels_last)
        )
    check_equal(model, images(2, 72, 72))


class FrozenInDouble(nn.Module):
    """A frozen part of another type than the trained one."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen, self.trained = nn.Linear(12, 7).double().requires_grad_(False), nn.Linear(7, 5)

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.trained(torch.tanh(self.frozen(inputs.double())).float())
        return logits


def test_frozen_parts_keep_their_type() -> None:
    model, inputs = FrozenInDouble(), images(12)
    labels, weights = torch.zeros(CLIENTS, BATCH, dtype=torch.int64), torch.ones(CLIENTS, BATCH)
    parameters = [part.detach().expand(CLIENTS, *part.shape) for part in model.trained.parameters()]
    together = batched_model(model)
    found = together.gradients(parameters, together.prepare(inputs), labels, weights)
    for client in range(CLIENTS):
        loss = nn.functional.cross_entropy(model(inputs[client]), labels[client], reduction="sum")
        for mine, theirs in zip(found, torch.autograd.grad(loss, list(model.trained.parameters())), strict=True):
            torch.testing.assert_close(mine[client], theirs)


def test_layers_equal_autograd_in_ties() -> None:
    """Whole numbers, so that different patches give equal values: the first of them takes all of the gradient."""
    pools = (
        [nn.Conv2d(1, 3, 3), nn.MaxPool2d(2), nn.Conv2d(3, 2, 2), nn.MaxPool2d(2)],
        [nn.Conv2d(1, 3, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(3, 2, 2), nn.ReLU(), nn.MaxPool2d(2)],
    )
    for layers in pools:
        model = convolutions(*layers, flat=2)
        assert isinstance(batched_model(model), LayeredModel)
        check_equal(model, images(1, 8, 8).sign(), whole=True)


@pytest.mark.parametrize("scale", [1.0, -1.0, 0.0])
def test_norms_equal_autograd_in_ties(scale: float) -> None:
    """Whole numbers again, with means that are whole too; a norm that turns its maps over, and one that makes equals of
    all."""
    first = convolutions(nn.Conv2d(1, 3, 3), norm(3), nn.MaxPool2d(2), nn.ReLU(), flat=27)
    second = convolutions(
        nn.Conv2d(1, 3, 3), nn.MaxPool2d(2), nn.Conv2d(3, 2, 2), norm(2), nn.ReLU(), nn.MaxPool2d(2), flat=2
    )
    inputs = images(1, 8, 8).sign().double() * (6 * 6 * BATCH)
    for model, place in ((first, 2), (second, 4)):
        parameters = [part.detach().double().mul(10).round() for part in stacked(model)]
        parameters[place][:] = torch.tensor([scale, 2, -3])[: parameters[place].shape[1]]
        # Never at the edge of the ReLU: where the mean is 0, PyTorch's rounding lets a gradient through.
        parameters[place + 1] += 0.5
        together = batched_model(model)
        assert isinstance(together, NormedModel)
        check_padded(together, model.double(), parameters, inputs, sizes=[BATCH] * CLIENTS)


def check_padded(
    together: BatchedModel,
    model: nn.Module,
    parameters: list[Tensor],
    inputs: Tensor,
    *,
    sizes: list[int],
    pad: float | None = None,
) -> None:
    """Clients with fewer examples than a batch: gradients of the module on what is theirs."""
    labels = torch.randint(0, 5, (CLIENTS, BATCH), generator=torch.Generator().manual_seed(3)) % 2
    shares = [[1 / size if place < size else 0 for place in range(BATCH)] for size in sizes]
    # As a trainer pads: with the client's first example.
    inputs, labels = inputs.clone(), labels.clone()
    for client, size in enumerate(sizes):
        inputs[client, size:], labels[client, size:] = inputs[client, 0] if pad is None else pad, labels[client, 0]
    prepared = together.prepare(inputs)
    for _ in range(2):
        gradients = together.gradients(parameters, prepared, labels, torch.tensor(shares, dtype=inputs.dtype))
    for client, size in enumerate(sizes):
        single = copy.deepcopy(model)
        for own, part in zip(single.parameters(), parameters, strict=True):
            own.data.copy_(part[client])
        loss = nn.functional.cross_entropy(single(inputs[client, :size]), labels[client, :size])
        for mine, theirs in zip(gradients, torch.autograd.grad(loss, list(single.parameters())), strict=True):
            torch.testing.assert_close(mine[client], theirs, rtol=1e-8, atol=1e-10)


SIZES = [[1, 2, 3, 2], [3, 3, 3, 3], [1, 1, 1, 1]]


@pytest.mark.parametrize("name", NORMED)
def test_padding_is_in_no_statistics(name: str) -> None:
    """Not even if it is no number."""
    make, inputs = NORMED[name]
    model = make().double()
    parameters = [part.detach().double() for part in stacked(model)]
    together = batched_model(model)
    assert isinstance(together, NormedModel)
    for sizes in SIZES:
        check_padded(together, model, parameters, inputs.double(), sizes=sizes)
        check_padded(together, model, parameters, inputs.double(), sizes=sizes, pad=math.nan)


@pytest.mark.parametrize("name", NORMED)
@pytest.mark.parametrize("one_by_one", [False, True])
def test_norms_see_no_padding(name: str, one_by_one: bool) -> None:
    make, inputs = NORMED[name]
    model = make().double()
    parameters = [part.detach().double() for part in stacked(model)]
    slow = _AnyModule(model, CROSS_ENTROPY)
    slow._one_by_one = one_by_one
    for sizes in SIZES:
        check_padded(slow, model, parameters, inputs.double(), sizes=sizes)


class Doubled(nn.Sequential):
    def forward(self, inputs: Tensor) -> Tensor:
        return 2 * super().forward(inputs)


class Leaky(nn.ReLU):
    def forward(self, inputs: Tensor) -> Tensor:
        return torch.where(inputs > 0, inputs, 0.1 * inputs)


def tied() -> nn.Module:
    first, second = nn.Linear(16, 16), nn.Linear(16, 16)
    second.weight = first.weight
    return nn.Sequential(nn.Conv2d(1, 1, 3), nn.Flatten(), first, nn.ReLU(), second)


def repeated() -> nn.Module:
    dense = nn.Linear(16, 16)
    return nn.Sequential(nn.Conv2d(1, 1, 3), nn.Flatten(), dense, nn.ReLU(), dense)


def norm_twice() -> nn.Module:
    shared = norm(2)
    return convolutions(nn.Conv2d(1, 2, 3), shared, nn.Conv2d(2, 2, 1), shared, flat=32)


def hooked() -> nn.Module:
    model = convolutions(nn.Conv2d(1, 2, 3), nn.ReLU(), flat=32)
    model[1].register_forward_hook(lambda _module, _inputs, output: 3 * output)  # type: ignore[index]
    return model


UNUSUAL: dict[str, Callable[[], nn.Module]] = {
    "two pools": lambda: convolutions(nn.Conv2d(1, 2, 3), nn.MaxPool2d(2), nn.MaxPool2d(2), flat=2),
    "ReLU after Flatten": lambda: nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.ReLU(), nn.Linear(32, 5)),
    "no dense layer": lambda: nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten()),
    "own forward": lambda: Doubled(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(32, 5)),
    "own layer": lambda: convolutions(nn.Conv2d(1, 2, 3), Leaky(), flat=32),
    "dense layer on the columns": lambda: nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Linear(4, 3), nn.Flatten(), nn.Linear(24, 5)
    ),
    "channels kept": lambda: nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(2), nn.Linear(16, 5), nn.Flatten()),
    "tied weights": tied,
    "a layer twice": repeated,
    "hooks": hooked,
    "dilated pool": lambda: convolutions(nn.Conv2d(1, 2, 2), nn.MaxPool2d(2, dilation=2), flat=8),
    "norm without a scale": lambda: convolutions(
        nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2, affine=False, track_running_stats=False), flat=32
    ),
    "norm after ReLU": lambda: convolutions(nn.Conv2d(1, 2, 3), nn.ReLU(), norm(2), flat=32),
    "norm first": lambda: nn.Sequential(norm(1), nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(32, 5)),
    "two norms": lambda: convolutions(nn.Conv2d(1, 2, 3), norm(2), norm(2), flat=32),
    "norm by example": lambda: convolutions(nn.Conv2d(1, 2, 3), nn.GroupNorm(2, 2), flat=32),
    "a norm twice": norm_twice,
    "uneven padding": lambda: convolutions(nn.Conv2d(1, 2, 3, padding=(1, 0)), nn.ReLU(), flat=48),
    "grouped": lambda: convolutions(nn.Conv2d(1, 2, 3), nn.Conv2d(2, 2, 3, groups=2), flat=8),
}


@pytest.mark.parametrize("name", UNUSUAL)
def test_unusual_models_are_not_fast(name: str) -> None:
    model = UNUSUAL[name]()
    assert isinstance(batched_model(model), _AnyModule)
    check_equal(model, images(1, 6, 6))


def test_running_statistics_are_not_fast() -> None:
    """They are refused elsewhere; `check_equal` would compare modules that change."""
    model = convolutions(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), flat=32)
    assert isinstance(batched_model(model), _AnyModule)


@pytest.mark.parametrize(
    "make",
    [
        lambda: CharLSTM(num_classes=11, embedding=3, hidden=5),
        Recurrent,
        lambda: build_model("small-cnn", seed=0),
        normed_cnn3,
    ],
)
def test_threads_do_not_meet(make: Callable[[], nn.Module]) -> None:
    model = make()
    before = copy.deepcopy(model.state_dict())
    inputs = characters() if isinstance(model, CharLSTM) else images(6, 4)
    if isinstance(model, nn.Sequential):
        inputs = images(*((3, 32, 32) if isinstance(model[1], nn.BatchNorm2d) else (1, 28, 28)))
    together = batched_model(model)
    labels, weights = torch.ones(CLIENTS, BATCH, dtype=torch.int64), torch.ones(CLIENTS, BATCH)

    def work(parameters: list[Tensor]) -> list[Tensor]:
        found = together.gradients(parameters, together.prepare(inputs), labels, weights)
        return [part.clone() for part in found]

    jobs = [stacked(model, seed=seed) for seed in range(24)]
    expected = [work(parameters) for parameters in jobs]
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(work, jobs))
    for found, wanted in zip(results, expected, strict=True):
        assert all(torch.equal(one, two) for one, two in zip(found, wanted, strict=True))
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])
    assert all(type(parameter) is nn.Parameter for parameter in model.parameters())


FAULTS = """
import resource, statistics, torch
from gdpfed.tasks.models import build_model
from gdpfed.training.clients.batched import batched_model
torch.set_num_threads(1)
model = build_model("cnn3-batch", seed=0)
together = batched_model(model)
parameters = [part.detach().expand(4, *part.shape).clone() for part in model.parameters()]
inputs, labels, weights = torch.randn(4, 10, 3, 32, 32), torch.ones(4, 10, dtype=torch.int64), torch.ones(4, 10)
found = []
for _ in range(30):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    together.gradients(parameters, together.prepare(inputs), labels, weights)
    found.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
print(statistics.median(found[10:]))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another malloc")
def test_freed_memory_is_used_again() -> None:
    """Pages of 4 kB that a step takes; it works on 4,000."""
    run = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, text=True, check=True, timeout=120)
    assert float(run.stdout) < 40


class Lossy(nn.Module):
    """Dropout as a layer, as a function and between the weights of attention."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.TransformerEncoderLayer(12, 2, 8, dropout=0.3, batch_first=True)
        self.dropout = nn.Dropout(0.4)
        self.dense = nn.Linear(12, 5)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.dropout(self.attention(inputs)[:, -1])
        logits: Tensor = self.dense(nn.functional.dropout(hidden, 0.5))
        return logits


def test_dropout_is_each_clients_own() -> None:
    """With vmap as one after the other, alone as among others; other keys, other masks; in eval mode none at all."""
    model, inputs = Lossy(), images(3, 12)
    labels = torch.randint(0, 5, (CLIENTS, BATCH), generator=torch.Generator().manual_seed(3))
    weights = torch.full((CLIENTS, BATCH), 1 / BATCH)
    parameters, keys = stacked(model), torch.arange(CLIENTS) * 977 + 5
    together = batched_model(model).gradients(parameters, inputs, labels, weights, keys)
    for client in range(CLIENTS):
        rows = slice(client, client + 1)
        own = [part[rows] for part in parameters]
        alone = batched_model(model).gradients(own, inputs[rows], labels[rows], weights[rows], keys[rows])
        one = batched_model(model)
        one._one_by_one = True  # type: ignore[attr-defined]
        single = one.gradients(own, inputs[rows], labels[rows], weights[rows], keys[rows])
        for mine, theirs, looped in zip(together, alone, single, strict=True):
            torch.testing.assert_close(mine[client], theirs[0])
            torch.testing.assert_close(looped, theirs)
    others = batched_model(model).gradients(parameters, inputs, labels, weights, keys + 1)
    assert not torch.allclose(together[0], others[0])
    model.eval()
    still = [batched_model(model).gradients(parameters, inputs, labels, weights, key) for key in (keys, keys + 1)]
    assert not torch.allclose(together[0], still[0][0])


class Random(nn.Module):
    def __init__(self, *, recurrent: bool) -> None:
        super().__init__()
        self.cell = nn.LSTM(12, 12, num_layers=2, dropout=0.5, batch_first=True) if recurrent else None
        self.dense = nn.Linear(12, 5)

    def forward(self, inputs: Tensor) -> Tensor:
        if self.cell is None:
            return self.dense(inputs + torch.rand_like(inputs))
        return self.dense(self.cell(inputs.unsqueeze(1))[0][:, -1])


@pytest.mark.parametrize("recurrent", [False, True])
def test_other_randomness_is_refused(recurrent: bool) -> None:
    model = Random(recurrent=recurrent)
    with pytest.raises(InputError, match="take the random part out"):
        batched_model(model).gradients(
            stacked(model), images(12), torch.ones(CLIENTS, BATCH, dtype=torch.int64), torch.ones(CLIENTS, BATCH)
        )


def weighted(outputs: Tensor, targets: Tensor) -> Tensor:
    """A mean that is no mean of the examples' own losses."""
    classes = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0], dtype=outputs.dtype)
    return nn.functional.cross_entropy(outputs, targets, weight=classes)


def branching(outputs: Tensor, targets: Tensor) -> Tensor:
    """What vmap cannot do."""
    scale = 2.0 if outputs.sum().item() > 0 else 1.0
    return nn.functional.cross_entropy(outputs, targets) * scale


def huber(outputs: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.huber_loss(outputs, targets, reduction="none").mean(1)


LOSS_CASES: dict[str, object] = {
    "mse": "mse", "bce-with-logits": "bce-with-logits", "each": huber, "weighted mean": weighted, "loop": branching
}  # fmt: skip


@pytest.mark.parametrize("name", LOSS_CASES)
def test_own_losses_equal_autograd(name: str) -> None:
    """Clients of one, two and three examples: what pads a batch is in no loss."""
    chosen = loss_of(LOSS_CASES[name])  # type: ignore[arg-type]
    model = nn.Sequential(nn.Linear(12, 7), nn.Tanh(), nn.Linear(7, 5)).double()
    inputs, generator = images(12).double(), torch.Generator().manual_seed(4)
    targets = torch.randint(0, 5, (CLIENTS, BATCH), generator=generator)
    if name in ("mse", "bce-with-logits", "each"):
        targets = torch.rand(CLIENTS, BATCH, 5, generator=generator).round().double()
    chosen = chosen.check(model(inputs[0]), targets[0])
    assert chosen.is_mean == (name in ("weighted mean", "loop"))
    parameters = [part.detach().double() for part in stacked(model)]
    sizes = [1, 2, 3, 2]
    shares = [[1 / size if place < size else 0 for place in range(BATCH)] for size in sizes]
    weights = torch.tensor(shares, dtype=torch.float64)
    gradients = batched_model(model, chosen).gradients(parameters, inputs, targets, weights)
    for client, size in enumerate(sizes):
        single = copy.deepcopy(model)
        for own, part in zip(single.parameters(), parameters, strict=True):
            own.data.copy_(part[client])
        loss = chosen.function(single(inputs[client, :size]), targets[client, :size]).mean()
        of_single = torch.autograd.grad(loss, list(single.parameters()))
        for mine, theirs in zip(gradients, of_single, strict=True):
            torch.testing.assert_close(mine[client], theirs, rtol=1e-9, atol=1e-12)
