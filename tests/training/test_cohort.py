"""Local training of many clients."""

import copy
import dataclasses
import math
import subprocess
import sys
from contextlib import nullcontext
from typing import cast

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from gdpfed.errors import InputError, PrivacyError
from gdpfed.tasks.losses import loss_of
from gdpfed.tasks.models import CharLSTM, build_model
from gdpfed.training.clients.blocks import BlockTrainer, ClientData, LocalTraining, flat_parameters, local_batches
from gdpfed.training.clients.cohort import CohortTrainer
from gdpfed.training.clients.engines import Engine, chosen_device
from gdpfed.training.clients.layers import LayeredModel
from tests.training.worlds import World, members, world

pytestmark = pytest.mark.training

ROUND = 2


def updates(where: World, *, workers: int = 1, chunk: int | None = None, clients: list[int] | None = None) -> Tensor:
    """Of all clients, in order."""
    chosen = np.arange(len(where.data.members)) if clients is None else np.array(clients)
    trainer = CohortTrainer(where.model, where.data, where.local, num_workers=workers, chunk_clients=chunk)
    try:
        parts = list(trainer.updates(flat_parameters(where.model), chosen, seed=3, round_number=ROUND))
    finally:
        trainer.close()
    assert np.concatenate([part for part, _ in parts]).tolist() == chosen.tolist()
    return torch.cat([part for _, part in parts])


def sigmoids() -> World:
    """Sizes that no vector register divides, and a function whose vector and scalar forms differ in the last bit."""
    generator = torch.Generator().manual_seed(0)
    data = ClientData(
        inputs=torch.randn(560, 7, 7, generator=generator),
        labels=torch.randint(0, 3, (560,), generator=generator),
        members=members(560),
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Flatten(), nn.Linear(49, 13), nn.Sigmoid(), nn.Linear(13, 7), nn.Tanh(), nn.Linear(7, 3)
        )
    return World(model=model, data=data)


def odd_images() -> World:
    """Three of a batch, nine inputs, three outputs: matrices that start at any address."""
    generator = torch.Generator().manual_seed(0)
    data = ClientData(
        inputs=torch.randn(560, 1, 13, 13, generator=generator),
        labels=torch.randint(0, 7, (560,), generator=generator),
        members=members(560),
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Conv2d(1, 3, 3),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(3, 5, 2),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(20, 7),
        )
    return World(model=model, data=data, local=LocalTraining(batch_size=3, local_steps=3))


def normed() -> World:
    """Norms by each client's own batch, among clients with fewer examples than a batch."""
    generator = torch.Generator().manual_seed(0)
    data = ClientData(
        inputs=torch.randn(560, 1, 13, 13, generator=generator),
        labels=torch.randint(0, 4, (560,), generator=generator),
        members=members(560),
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Conv2d(1, 3, 3, bias=False),
            nn.BatchNorm2d(3, track_running_stats=False),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(3, 4, 2),
            nn.BatchNorm2d(4, track_running_stats=False),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(16, 4, bias=False),
        )
    # Ten steps of a large rate would make rounding visible: a norm of one example's few places is steep.
    return World(model=model, data=data, local=LocalTraining(batch_size=5, local_steps=3, learning_rate=0.05))


def slowly_normed() -> World:
    """The same by autograd: Tanh is no known layer."""
    where = normed()
    layers = [nn.Tanh() if isinstance(layer, nn.ReLU) else layer for layer in where.model.children()]
    return dataclasses.replace(where, model=nn.Sequential(*layers))


WORLDS = {
    "normed": normed, "slowly normed": slowly_normed,
    "cnn": lambda: world("cnn"), "lstm": lambda: world("lstm"), "sigmoids": sigmoids, "odd images": odd_images,
}  # fmt: skip


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("kind", WORLDS)
def test_chunks_and_workers_change_nothing(kind: str, momentum: float) -> None:
    where = WORLDS[kind]()
    where = dataclasses.replace(where, local=dataclasses.replace(where.local, momentum=momentum))
    expected = updates(where)
    for chunk, workers in ((1, 2), (3, 1), (3, 3), (7, 2), (20, 1), (20, 3), (45, 2)):
        assert torch.equal(updates(where, workers=workers, chunk=chunk), expected), (chunk, workers)


def test_blocks_are_even_and_follow_from_the_cohort() -> None:
    where = world("cnn")
    found = []
    for workers, chunk in ((1, None), (3, 1), (2, 40)):
        trainer = CohortTrainer(where.model, where.data, where.local, num_workers=workers, chunk_clients=chunk)
        found.append([[len(block) for block in trainer._blocks(np.arange(num))] for num in (0, 1, 3, 20, 113, 400)])
        trainer.close()
    assert found[0] == found[1] == found[2]
    for num, sizes in zip((0, 1, 3, 20, 113, 400), found[0], strict=True):
        assert sum(sizes) == num
        assert max(sizes, default=0) <= LayeredModel.block_clients
        assert max(sizes, default=0) - min(sizes, default=0) <= 1
        assert len(sizes) % 4 == 0 or len(sizes) == num


def test_company_changes_no_more_than_the_last_bits() -> None:
    for kind in ("cnn", "lstm"):
        where = world(kind)
        together = updates(where)
        alone = torch.cat([updates(where, clients=[client]) for client in (0, 1, 17, 39)])
        torch.testing.assert_close(alone, together[[0, 1, 17, 39]], rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("kind", WORLDS)
def test_same_as_plain_training(kind: str, momentum: float) -> None:
    """To 1e-5 of the largest change."""
    where = WORLDS[kind]()
    where = dataclasses.replace(where, local=dataclasses.replace(where.local, momentum=momentum))
    found = updates(where, workers=2)
    start = flat_parameters(where.model).double()
    rate = where.local.learning_rate * where.local.learning_rate_decay**ROUND
    for client in range(0, 40, 3):
        model = copy.deepcopy(where.model)
        optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=momentum)
        chosen = local_batches(where.data.members[client], where.local, seed=3, round_number=ROUND, client=client)
        for batch in chosen.tolist():
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(where.data.inputs[batch]), where.data.labels[batch]).backward()
            optimizer.step()
        moved = flat_parameters(model).double() - start
        assert float((found[client] - moved).abs().max()) <= 1e-5 * max(float(moved.abs().max()), 1e-2)


def test_a_fixed_batch_is_cut_once_and_trains_the_same() -> None:
    """No client has more examples than a batch: every step uses all of them."""
    where = world("cnn")
    fixed = dataclasses.replace(where, local=dataclasses.replace(where.local, batch_size=14))
    trainer = CohortTrainer(fixed.model, fixed.data, fixed.local, num_workers=1)
    assert trainer._trainer.is_fixed
    trainer.close()
    found = updates(fixed)
    for client in (0, 1, 2):
        model = copy.deepcopy(where.model)
        own = where.data.members[client]
        optimizer = torch.optim.SGD(model.parameters(), lr=fixed.local.rate(ROUND), momentum=fixed.local.momentum)
        for _ in range(fixed.local.local_steps):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(where.data.inputs[own]), where.data.labels[own]).backward()
            optimizer.step()
        moved = flat_parameters(model).double() - flat_parameters(where.model).double()
        torch.testing.assert_close(found[client], moved, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", ["cnn", "sigmoids", "odd images", "features", "normed"])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_everything_is_on_the_device(kind: str, momentum: float) -> None:
    """PyTorch's meta device computes shapes only, and refuses to mix with tensors of another: a GPU for the poor."""
    where = world(kind) if kind == "features" else WORLDS[kind]()
    local = dataclasses.replace(where.local, momentum=momentum)
    trainer = BlockTrainer(where.model, where.data, local, device="meta")
    moved = trainer._train(flat_parameters(where.model).to("meta"), np.arange(5), 3, ROUND)
    assert moved.device.type == "meta"
    assert moved.shape == (5, trainer.num_params)
    assert trainer.largest_block("cuda") > trainer.largest_block("cpu")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("kind", WORLDS)
def test_a_gpu_trains_the_same_up_to_rounding(kind: str) -> None:
    where = WORLDS[kind]()
    trainer = CohortTrainer(where.model, where.data, where.local, num_workers=1, engine=Engine(device="cuda"))
    chosen = np.arange(len(where.data.members))
    found = [
        torch.cat([part for _, part in trainer.updates(flat_parameters(where.model), chosen, seed=3, round_number=2)])
        for _ in range(2)
    ]
    trainer.close()
    assert torch.equal(found[0], found[1])
    torch.testing.assert_close(found[0], updates(where), rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("kind", ["cnn", "normed", "slowly normed"])
@pytest.mark.parametrize("value", [math.nan, math.inf, 1e30])
def test_clients_see_only_their_own(kind: str, value: float) -> None:
    """Everybody else's examples broken: not a bit of one's own update changes, padded batch or not."""
    where = WORLDS[kind]()
    expected = updates(where)
    for client in (0, 1, 5):
        inputs = torch.full_like(where.data.inputs, value)
        labels = torch.zeros_like(where.data.labels)
        own = where.data.members[client]
        inputs[own], labels[own] = where.data.inputs[own], where.data.labels[own]
        alone = dataclasses.replace(where, data=dataclasses.replace(where.data, inputs=inputs, labels=labels))
        assert torch.equal(updates(alone)[client], expected[client])
        assert bool(expected[client].isfinite().all())


MEMORY = """
import resource, sys
import numpy as np, torch
from gdpfed.tasks.models import build_model
from gdpfed.training.clients.blocks import BlockTrainer
from gdpfed.training.clients.blocks import ClientData, LocalTraining, flat_parameters
from gdpfed.training.clients.cohort import CohortTrainer
torch.set_num_threads(1)
model = build_model("small-cnn", seed=0)

def peak(num_clients, cohort):
    data = ClientData(
        inputs=torch.zeros(100, 1, 28, 28), labels=torch.zeros(100, dtype=torch.long),
        members=np.arange(100).reshape(-1, 1)[np.arange(num_clients) % 100],
    )
    trainer = CohortTrainer(model, data, LocalTraining(local_steps=1), num_workers=2)
    chosen = np.random.default_rng(0).choice(num_clients, cohort, replace=False)
    for _ in trainer.updates(flat_parameters(model), chosen, seed=0, round_number=0):
        pass
    trainer.close()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

print(peak(200, 100), peak(100_000, 100), peak(100_000, 1500))
"""


def test_memory_follows_the_cohort() -> None:
    """Five hundred times the clients add only their entries in the list of members; a parameter vector for each would
    be 8.7 GB. And updates are handed on as they come: fifteen times the cohort (262 MB of updates) adds little."""
    run = subprocess.run([sys.executable, "-c", MEMORY], capture_output=True, text=True, check=True, timeout=120)
    few, many, large = map(float, run.stdout.split())
    assert many - few < 40
    assert large - many < 100


def test_batches_pass_over_all_examples() -> None:
    local = LocalTraining(local_steps=4, batch_size=5)
    examples = np.arange(100, 110)
    batches = local_batches(examples, local, seed=1, round_number=0, client=3)
    assert batches.shape == (4, 5)
    assert sorted(batches[:2].flatten()) == sorted(batches[2:].flatten()) == examples.tolist()
    few = local_batches(examples[:3], local, seed=1, round_number=0, client=3)
    assert (few == examples[:3]).all()
    assert few.shape == (4, 3)
    for other in ({"round_number": 1}, {"client": 4}, {"seed": 2}):
        address = {"seed": 1, "round_number": 0, "client": 3, **other}
        assert not np.array_equal(local_batches(examples, local, **address), batches)


def test_a_lonely_or_empty_cohort() -> None:
    where = world("lstm")
    assert updates(where, clients=[4]).shape == (1, len(flat_parameters(where.model)))
    trainer = CohortTrainer(where.model, where.data, where.local, num_workers=2)
    assert list(trainer.updates(flat_parameters(where.model), [], seed=0, round_number=0)) == []
    assert trainer.map(lambda value: value * value, range(5)) == [0, 1, 4, 9, 16]
    trainer.close()


def test_large_models_come_in_small_blocks() -> None:
    data = ClientData(inputs=torch.zeros(4, 3, 32, 32), labels=torch.zeros(4, dtype=torch.long), members=[np.arange(4)])
    trainer = CohortTrainer(build_model("resnet18", seed=0), data, LocalTraining(), num_workers=1)
    assert trainer._team.most_clients == 1
    trainer.close()


@pytest.mark.parametrize(
    "bad",
    [
        {"learning_rate": 0.0}, {"learning_rate": math.inf}, {"learning_rate_decay": -1.0}, {"momentum": 1.0},
        {"local_steps": 0}, {"batch_size": 0},
    ],
)  # fmt: skip
def test_impossible_training_is_refused(bad: dict[str, float]) -> None:
    with pytest.raises(InputError, match=f"{next(iter(bad))}="):
        LocalTraining(**bad)  # type: ignore[arg-type]


def test_impossible_data_is_refused() -> None:
    inputs, labels = torch.zeros(6, 1, 14, 14), torch.tensor([0, 1, 2, 3, 4, 5])
    with pytest.raises(InputError, match="label for each of 6"):
        ClientData(inputs=inputs, labels=labels[:5], members=[np.arange(3)])
    with pytest.raises(InputError, match="none for client 1"):
        ClientData(inputs=inputs, labels=labels, members=[np.arange(3), np.arange(0)])
    for wrong in (np.array([6]), np.array([-1])):
        with pytest.raises(InputError, match=r"from 0 to 5, got .* for client 0"):
            ClientData(inputs=inputs, labels=labels, members=[wrong])
    with pytest.raises(InputError, match="labels from 0 up, got -1"):
        ClientData(inputs=inputs, labels=labels - 1, members=[np.arange(3)])
    data = ClientData(inputs=inputs, labels=labels, members=[np.arange(3)])
    model = world("cnn").model
    with pytest.raises(InputError, match="labels below 5, the model's number of classes, got 5"):
        CohortTrainer(model, data, LocalTraining(), num_workers=1)
    fine = dataclasses.replace(data, labels=labels.clamp(max=4))
    with pytest.raises(InputError, match="num_workers=0"):
        CohortTrainer(model, fine, LocalTraining(), num_workers=0)
    with pytest.raises(InputError, match="chunk_clients=0"):
        CohortTrainer(model, fine, LocalTraining(), num_workers=1, chunk_clients=0)
    with pytest.raises(InputError, match="got the shape"):
        CohortTrainer(model[:2], fine, LocalTraining(), num_workers=1)  # type: ignore[index]
    frozen = copy.deepcopy(model).requires_grad_(False)
    with pytest.raises(InputError, match="something to train"):
        CohortTrainer(frozen, fine, LocalTraining(), num_workers=1)
    flat = nn.Sequential(nn.Flatten(), nn.Linear(196, 5), nn.BatchNorm1d(5, track_running_stats=False))
    alone = dataclasses.replace(fine, members=[np.arange(3), np.arange(1)])
    mean = LocalTraining(loss=loss_of(nn.functional.cross_entropy))
    for local in (mean, LocalTraining()):
        CohortTrainer(flat, fine, local, num_workers=1).close()
    with pytest.raises(InputError, match="more than 1 value per channel"):
        CohortTrainer(flat, alone, mean, num_workers=1)
    with pytest.raises(InputError, match="fails on the first example, of shape"):
        CohortTrainer(model, dataclasses.replace(fine, inputs=torch.zeros(6, 9)), LocalTraining(), num_workers=1)


def test_frozen_parameters_stay() -> None:
    """The rest moves as if everything was trained from the same place in one step, and the frozen part not at all."""
    made = world("cnn")
    local = LocalTraining(learning_rate=0.1, local_steps=1, batch_size=4)
    frozen = copy.deepcopy(made.model)
    frozen[0].requires_grad_(False)  # type: ignore[index]
    moved = []
    for model in (made.model, frozen):
        trainer = CohortTrainer(model, made.data, local, num_workers=1)
        (pair,) = trainer.updates(flat_parameters(model), [0], seed=1, round_number=0)
        moved.append(pair[1])
        trainer.close()
    fixed = sum(parameter.numel() for parameter in frozen[0].parameters())  # type: ignore[index]
    assert moved[1].shape[1] == moved[0].shape[1] - fixed == trainer.num_params == len(flat_parameters(frozen))
    torch.testing.assert_close(moved[1], moved[0][:, fixed:], rtol=1e-4, atol=1e-6)
    assert all(torch.equal(a, b) for a, b in zip(made.model[0].parameters(), frozen[0].parameters(), strict=True))  # type: ignore[index]


class Remembers(nn.Module):
    """Answers with what it keeps of all that it saw, or keeps it for whoever looks at the module, or at its first
    call."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what = what
        self.dense = nn.Linear(12, 5)
        self.kept: Tensor | None = None

    def forward(self, inputs: Tensor) -> Tensor:
        flat = inputs.flatten(1)[:, :12]
        if self.what == "a mean":
            mean = flat.mean(0).detach()
            self.kept = mean if self.kept is None else 0.9 * self.kept + 0.1 * mean
            flat = flat - self.kept
        elif self.what == "the last":
            self.kept = flat
        elif self.kept is None:
            self.kept = torch.ones(12)
        return cast(Tensor, self.dense(nn.functional.dropout(flat, 0.5, self.training)))


@pytest.mark.parametrize(("what", "is_refused"), [("a mean", True), ("the last", False), ("ones", False)])
def test_a_model_with_a_memory_is_refused(what: str, is_refused: bool) -> None:
    made = world("cnn")
    local = LocalTraining(learning_rate=0.1, local_steps=1, batch_size=4)
    with pytest.raises(PrivacyError, match="keeps something") if is_refused else nullcontext():
        BlockTrainer(Remembers(what), made.data, local)


def test_auto_takes_a_gpu_where_there_is_one() -> None:
    assert chosen_device("auto", available=True) == "cuda"
    assert chosen_device("auto", available=False) == "cpu"
    assert chosen_device("cpu", available=True) == "cpu"


def test_lstm_world_is_an_lstm() -> None:
    assert isinstance(world("lstm").model, CharLSTM)
