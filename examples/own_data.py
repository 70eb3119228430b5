"""Data, a model, a loss and a metric of one's own, for the command line: `own_data.toml` names these functions.

    cd examples && gdpfed train own_data.toml --out runs/own
    gdpfed report runs/own -o own.html
    python own_data.py

A file that names functions runs them: train only what you have written, or read. `gdpfed report` and `gdpfed show` of a
run, also of somebody else's, import nothing of it.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import gdpfed


def people(seed: int, num_clients: int) -> dict[str, Any]:
    """What each client holds, and a public test set: here numbers of a rule, and what it gives, with errors.

    Arrays, tensors, torch and Hugging Face data sets will do. With "train" in the place of "clients", the examples are
    dealt out as the task's `partition` says.
    """
    generator = np.random.default_rng(seed)
    rule = np.array([2.0, -1.0, 0.5, 0.0])

    def examples(count: int) -> dict[str, Any]:
        inputs = generator.normal(size=(count, 4))
        return {"x": inputs, "y": inputs @ rule + generator.normal(scale=0.1, size=count)}

    return {"clients": [examples(10) for _ in range(num_clients)], "test": examples(500)}


def network() -> nn.Module:
    """Any module without running statistics; its weights follow from the run's seed."""
    return nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Dropout(0.05), nn.Linear(16, 1))


def robust(outputs: Tensor, targets: Tensor) -> Tensor:
    """A loss for each example; the mean of all would do, too."""
    return nn.functional.huber_loss(outputs[:, 0], targets, reduction="none")


def absolute_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """A metric: one number for the whole test set."""
    return (outputs[:, 0] - targets).abs().mean()


if __name__ == "__main__":
    task = gdpfed.load_task(str(Path(__file__).with_suffix(".toml")))
    run = gdpfed.start_run(task, seed=1, folder=Path("own"))
    final = gdpfed.simulate(run, num_workers=1)
    assert final is not None
    assert final.metrics is not None
    print(f"absolute error {final.metrics['absolute_error']:.2f}, loss {final.loss:.2f}, {final.accuracy:.0f} % less")
    assert torch.isfinite(torch.tensor(final.loss))
    assert final.accuracy > 30
