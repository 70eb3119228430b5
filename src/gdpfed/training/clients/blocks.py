"""What a worker does with its share of a cohort: train blocks of clients, many clients at once.

Place: below the cohort trainer, which cuts cohorts into blocks and hands them out. The same object serves in this
process, in a forked one, or in one of another machine, which is why it is made of plain values: a model, the clients'
examples, how they train, and the device to train on.

Local training: `local_steps` steps of SGD from the global model on batches of the client's own examples, drawn without
replacement until all were seen; a client with no more examples than a batch uses all of them in every step.

Guarantees (tests of the same name):
  same_as_plain_training            each update equals that of a plain PyTorch loop over the client's batches.
  clients_see_only_their_own        no other client's examples, however broken, change an update.
  everything_is_on_the_device       no step of the training leaves the device it was asked for.
  frozen_parameters_stay            what has requires_grad=False is in no update, and as it was.
  a_model_with_a_memory_is_refused  what it saw of one client would change its answers to the next.
"""

import copy
import os
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from gdpfed import streams
from gdpfed.config import fit_fields
from gdpfed.errors import InputError, PrivacyError, expect
from gdpfed.planning.settings import MAX_LOCAL_STEPS
from gdpfed.tasks.losses import CROSS_ENTROPY, Loss
from gdpfed.training.clients.batched import batched_model
from gdpfed.training.clients.dropout import step_keys

__all__ = [
    "BlockTrainer", "Chunk", "ClientData", "LocalTraining", "flat_parameters", "load_parameters", "local_batches",
    "trained_parameters",
]  # fmt: skip

# Blocks of clients, the seed, the round.
Chunk = tuple[list[NDArray[np.int64]], int, int]

# What a block may take on the CPU, and elsewhere, where a few large blocks are what makes it fast.
_BLOCK_BYTES = 256 * 2**20
_DEVICE_BLOCK_BYTES = 2**31
_DEVICE_BLOCK_CLIENTS = 128


@dataclass(frozen=True, kw_only=True)
class LocalTraining:
    """How a client trains; `gdpfed.train` fills in the ``loss``."""

    learning_rate: float = 0.1
    learning_rate_decay: float = 1.0
    momentum: float = 0.0
    local_steps: int = 5
    batch_size: int = 10
    # No part of its text, by which a library run knows its local training again.
    loss: Loss = field(default=CROSS_ENTROPY, repr=False, compare=False)

    def __post_init__(self) -> None:
        fit_fields(self)
        for name in ("learning_rate", "learning_rate_decay"):
            rate = getattr(self, name)
            expect(0 < rate < float("inf"), f"a finite {name} > 0", **{name: rate})
        expect(0 <= self.momentum < 1, "0 <= momentum < 1", momentum=self.momentum)
        steps = self.local_steps
        expect(1 <= steps <= MAX_LOCAL_STEPS, f"local_steps from 1 to {MAX_LOCAL_STEPS}", local_steps=steps)
        expect(self.batch_size >= 1, "batch_size >= 1", batch_size=self.batch_size)

    def rate(self, round_number: int) -> float:
        """The learning rate of a round."""
        return self.learning_rate * self.learning_rate_decay**round_number


@dataclass(frozen=True, kw_only=True, eq=False)
class ClientData:
    """All training examples, and which of them each client has."""

    inputs: Tensor
    labels: Tensor
    members: Sequence[NDArray[np.int64]]

    def __post_init__(self) -> None:
        if len(self.inputs) != len(self.labels):
            raise InputError(f"expected a label for each of {len(self.inputs)} examples, got {len(self.labels)}")
        for client, indices in enumerate(self.members):
            if not len(indices):
                raise InputError(f"expected examples for every client, got none for client {client}: leave it out")
            if indices.min() < 0 or indices.max() >= len(self.labels):
                raise InputError(
                    f"expected example numbers from 0 to {len(self.labels) - 1}, got {indices.min()} to "
                    f"{indices.max()} for client {client}"
                )
        # Of classes; tokens below 0 are left out, numbers may be anything.
        is_classes = self.labels.dtype == torch.int64 and self.labels.ndim == 1
        if is_classes and len(self.labels) and int(self.labels.min()) < 0:
            raise InputError(f"expected labels from 0 up, got {int(self.labels.min())}")


def trained_parameters(model: nn.Module) -> list[nn.Parameter]:
    """What is trained: all parameters but frozen ones."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def flat_parameters(model: nn.Module) -> Tensor:
    """The model's trained parameters as one vector (float32, a copy)."""
    return torch.cat([parameter.detach().flatten() for parameter in trained_parameters(model)]).float()


def load_parameters(model: nn.Module, flat: Tensor) -> nn.Module:
    """The model with these trained parameters."""
    nn.utils.vector_to_parameters(flat, trained_parameters(model))
    return model


def local_batches(
    examples: NDArray[np.int64], local: LocalTraining, *, seed: int, round_number: int, client: int
) -> NDArray[np.int64]:
    """The example numbers of each step: (steps, min(batch size, examples)), by shuffled passes over all of them."""
    size = min(local.batch_size, len(examples))
    if size == len(examples):
        return np.broadcast_to(examples, (local.local_steps, size))
    generator = streams.generator(seed, "batches", round_number=round_number, client=client)
    needed = local.local_steps * size
    passes = [generator.permutation(examples) for _ in range(-(-needed // len(examples)))]
    return np.concatenate(passes)[:needed].reshape(local.local_steps, size)


def _checked_loss(model: nn.Module, data: ClientData, local: LocalTraining) -> Loss:
    """The loss, ready for this model; InputError for what would otherwise fail in the middle of a round."""
    if not trained_parameters(model):
        raise InputError("expected a model with something to train, got none with requires_grad=True")
    loss = local.loss
    fewest = min(2, local.batch_size, *(len(indices) for indices in data.members))
    # Two tell a loss for each example from a mean, and are what a norm needs.
    inputs, targets = (torch.cat([part[:1], part[:1]]) for part in (data.inputs, data.labels))
    try:
        with torch.no_grad():
            outputs = copy.deepcopy(model).eval()(inputs)
            if fewest < len(inputs):
                # A norm may not take what a client with one example has.
                copy.deepcopy(model).eval()(inputs[:fewest])
    except Exception as error:
        raise InputError(
            f"the model fails on the first example, of shape {tuple(inputs.shape[1:])} and type "
            f"{str(inputs.dtype).removeprefix('torch.')}: {str(error).splitlines()[0]}"
        ) from error
    checked = loss.check(outputs, targets, most=None if targets.is_floating_point() else int(data.labels.max()))
    _refuse_memory(model, data)
    return checked


def _refuse_memory(model: nn.Module, data: ClientData) -> None:
    """PrivacyError if answers in training, with the same random numbers, depend on what was asked before."""
    asked, before = (torch.cat([data.inputs[first:][:1], data.inputs[-1:]]) for first in (0, -1))
    model = copy.deepcopy(model).train()
    answers = []
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        for inputs in (asked, before, asked):
            torch.manual_seed(0)
            answers.append(model(inputs))
    if not torch.allclose(answers[0], answers[2], rtol=1e-5, atol=1e-6, equal_nan=True):
        raise PrivacyError(
            "the model keeps something of the examples that it saw, and answers differently afterwards: one client's "
            "data would reach another's update. Let forward() change nothing that it reads"
        )


def _same_bits_again() -> None:
    """On CUDA: full float32 products, and of several algorithms always the same one."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False


class BlockTrainer:
    """Trains blocks of one model's clients."""

    def __init__(self, model: nn.Module, data: ClientData, local: LocalTraining, *, device: str = "cpu") -> None:
        self.loss = _checked_loss(model, data, local)
        self.model = model
        self.data = data
        self.local = local
        self._device = torch.device(device)
        self._shapes = [parameter.shape for parameter in trained_parameters(model)]
        self.layer_sizes = [parameter.numel() for parameter in trained_parameters(model)]
        # The length of an update.
        self.num_params = sum(self.layer_sizes)
        if self._device.type == "cuda":
            _same_bits_again()
        self._batched = batched_model(copy.deepcopy(model).to(self._device), self.loss)
        self._inputs, self._labels = data.inputs.to(self._device), data.labels.to(self._device)
        # One width for all, so that a client's numbers do not depend on who shares its block.
        most_examples = max(len(indices) for indices in data.members)
        self._width = min(local.batch_size, most_examples)
        # No client has more examples than a batch: every step uses the same.
        self.is_fixed = most_examples <= local.batch_size

    def largest_block(self, device: str) -> int:
        """By model, data and kind of device alone: who shares a block may change the last bits of an update."""
        on_cpu = device == "cpu"
        clients = self._batched.block_clients if on_cpu else _DEVICE_BLOCK_CLIENTS
        memory = _BLOCK_BYTES if on_cpu else _DEVICE_BLOCK_BYTES
        activations = 40 * self._width * int(np.prod(self.data.inputs.shape[1:]))
        return max(1, min(clients, memory // (4 * (6 * self.num_params + activations))))

    def __call__(self, parameters: Tensor, chunk: Chunk) -> Tensor:
        """The updates of all clients of a chunk: (clients, params) float64, on the CPU."""
        blocks, seed, round_number = chunk
        start = parameters.to(self._device)
        trained = [self._train(start, block, seed, round_number).cpu() for block in blocks]
        return trained[0] if len(trained) == 1 else torch.cat(trained)

    def _train(self, parameters: Tensor, clients: NDArray[np.int64], seed: int, round_number: int) -> Tensor:
        count = len(clients)
        parts = torch.split(parameters, self.layer_sizes)
        start = [part.view(1, *shape).expand(count, *shape) for part, shape in zip(parts, self._shapes, strict=True)]
        trained = [part.clone() for part in start]
        momenta: list[Tensor] = []
        indices, weights = self._batches(clients, seed, round_number)
        rate, momentum = self.local.rate(round_number), self.local.momentum
        keys = self._keys(clients, seed, round_number)
        inputs, labels = self._gather(indices[:, 0])
        prepared = self._batched.prepare(inputs)
        for step in range(self.local.local_steps):
            if step and not self.is_fixed:
                inputs, labels = self._gather(indices[:, step])
                prepared = self._batched.prepare(inputs)
            of_step = None if keys is None else keys[:, step]
            gradients = self._batched.gradients(trained, prepared, labels, weights, of_step)
            if momentum and step:
                gradients = [old.mul_(momentum).add_(new) for old, new in zip(momenta, gradients, strict=True)]
            elif momentum:
                momenta = gradients = [gradient.clone() for gradient in gradients]
            for parameter, gradient in zip(trained, gradients, strict=True):
                parameter.sub_(gradient, alpha=rate)
        moved = torch.cat([end.flatten(1) for end in trained], dim=1).double()
        return moved.sub_(parameters)

    def _keys(self, clients: NDArray[np.int64], seed: int, round_number: int) -> Tensor | None:
        """Of the masks of each step of each client."""
        if not self._batched.takes_keys:
            return None
        drawn = streams.generator(seed, "masks", round_number=round_number).integers(0, 2**63, dtype=np.int64)
        return step_keys(int(drawn), torch.from_numpy(clients).to(self._device), self.local.local_steps)

    def _batches(self, clients: NDArray[np.int64], seed: int, round_number: int) -> tuple[NDArray[np.int64], Tensor]:
        """Example numbers (clients, steps, width), and each example's weight in its client's mean.

        Short batches are padded with the client's own first example at weight 0: another's, if it were not finite,
        would reach this client's gradient, since 0 times NaN is NaN.
        """
        indices = np.zeros((len(clients), self.local.local_steps, self._width), dtype=np.int64)
        weights = np.zeros((len(clients), self._width), dtype=np.float32)
        for row, client in enumerate(clients):
            chosen = local_batches(
                self.data.members[client], self.local, seed=seed, round_number=round_number, client=int(client)
            )
            indices[row] = chosen[:, :1]
            indices[row, :, : chosen.shape[1]] = chosen
            weights[row, : chosen.shape[1]] = 1 / chosen.shape[1]
        return indices, torch.from_numpy(weights).to(self._device)

    def _gather(self, indices: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        wanted = torch.from_numpy(np.ascontiguousarray(indices)).to(self._device)
        return self._inputs[wanted], self._labels[wanted]
