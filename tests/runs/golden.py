"""Runs whose bytes are kept, so that a rebuilt house still does what the old one did.

OMP_NUM_THREADS=1 python -m tests.runs.golden      adds to same_bytes.json what it lacks for this kind of processor

Where bytes are meant to change, take what was kept out of the file first.
The last bit of a floating-point sum depends on the processor, and on the number of threads (a plan's, too).
`arithmetic` is a short training's worth of them: hashes are kept by it, and compared with those of the same kind.
"""

import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Callable
from contextlib import chdir
from pathlib import Path

import numpy as np
import pytest
import torch

from gdpfed.cli import main as command
from gdpfed.planning.methods import METHODS
from gdpfed.planning.plan_file import load_plan, plan_hash
from tests.runs.conftest import TINY

KEPT = Path(__file__).parent / "same_bytes.json"
TRAIN = (
    "train",
    "tiny.toml",
    "--rounds",
    "3",
    "--evaluate-every",
    "1",
    "--seed",
    "5",
    "--workers",
    "1",
    "--out",
    "run",
)


def _sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def arithmetic() -> str:
    """A hash of what this processor makes of a convolution and its gradient, and of a long inner product."""
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(7)
    inputs = torch.randn(5, 1, 28, 28, generator=generator)
    weights = torch.randn(8, 1, 5, 5, generator=generator).requires_grad_()
    dense = torch.randn(8 * 24 * 24, 10, generator=generator).requires_grad_()
    loss = torch.nn.functional.conv2d(inputs, weights).flatten(1) @ dense
    loss.square().sum().backward()
    assert weights.grad is not None
    assert dense.grad is not None
    long = np.random.default_rng(7).normal(size=200_001)
    inner = np.dot(long, long[::-1].copy()).tobytes()
    return _sha(weights.grad.numpy().tobytes() + dense.grad.numpy().tobytes() + inner)


def call(*arguments: str) -> None:
    """A command of the product, which must succeed."""
    with pytest.raises(SystemExit) as ended:
        command(list(arguments))
    assert not ended.value.code, arguments


def hashes(folder: Path) -> dict[str, str]:
    """What is kept of a run."""
    return {
        "plan": plan_hash(load_plan(folder / "plan.toml")),
        "records": _sha((folder / "records.jsonl").read_bytes()),
        "model": _sha((folder / "model.safetensors").read_bytes()),
    }


def _ledgered() -> None:
    call("ledger", "init", "book", "600@1.2,600@4.8", "--population", "people")
    call(*TRAIN, "--ledger", "book", "--method", "gdpfed")


def _resumed() -> None:
    """Ends after the first round, and goes on."""
    from gdpfed.runs import folder

    save = folder.RunFolder.save_checkpoint

    def save_and_fall(self: folder.RunFolder, state: object) -> None:
        save(self, state)  # type: ignore[arg-type]
        raise KeyboardInterrupt

    folder.RunFolder.save_checkpoint = save_and_fall  # type: ignore[assignment, method-assign]
    try:
        command([*TRAIN, "--method", "pooled", "--averaging", "0.5"])
    except (KeyboardInterrupt, SystemExit):
        pass
    finally:
        folder.RunFolder.save_checkpoint = save  # type: ignore[method-assign]
    call("resume", "run", "--workers", "1")


def _by_ray() -> None:
    """On a cluster of two nodes on loopback."""
    from tests.runs.test_ray import Nodes

    nodes = Nodes()
    try:
        call(*TRAIN, "--method", "gdpfed+", "--engine", "ray", "--ray-address", nodes.start()["address"])
    finally:
        nodes.stop()


def _library() -> None:
    """`gdpfed.train`: its model is all that there is."""
    import gdpfed

    generator = torch.Generator().manual_seed(3)
    clients = [
        (torch.randn(4, 6, generator=generator), torch.randint(0, 3, (4,), generator=generator)) for _ in range(40)
    ]
    torch.manual_seed(0)
    trained = gdpfed.train(
        model=torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.ReLU(), torch.nn.Linear(5, 3)),
        clients=clients,
        budgets=gdpfed.parse_compact("20@2,20@6"),
        # The default delta of so few clients was another when the first hashes were kept.
        settings=gdpfed.PlanSettings(num_rounds=3, participation=0.5, method="gdpfed", delta=40**-1.1),
        seed=4,
        test=clients[0],
        num_workers=1,
    )
    run = Path("run")
    run.mkdir()
    (run / "plan.toml").write_text("")
    vector = torch.nn.utils.parameters_to_vector(trained.model.parameters())
    (run / "model.safetensors").write_bytes(vector.detach().numpy().tobytes())
    told = [[one.round_number, one.cohort, one.clipped, one.dropped, one.update_norm] for one in trained.records]
    (run / "records.jsonl").write_text(json.dumps([told, trained.accuracies]))


ROTATION = (*TRAIN, "--against", "server", "--asks", "2", "--trainings", "1", "--method")
CASES: dict[str, Callable[[], None]] = {
    **{method: lambda method=method: call(*TRAIN, "--method", method) for method in METHODS},  # type: ignore[misc]
    "averaged": lambda: call(*TRAIN, "--method", "pooled", "--averaging", "0.5"),
    "secure": lambda: call(*TRAIN, "--method", "gdpfed+", "--secure", "--dropout", "0.1"),
    "secure pooled": lambda: call(*TRAIN, "--method", "pooled", "--secure", "--colluders", "0.1"),
    "rotation": lambda: call(*ROTATION, "gdpfed+"),
    "secure rotation": lambda: call(*ROTATION, "pooled", "--secure", "--dropout", "0.1"),
    "ledgered": _ledgered,
    "resumed": _resumed,
    "ray": _by_ray,
    "library": _library,
}


def made(case: str, folder: Path) -> dict[str, str]:
    """The hashes of one case, made now, in ``folder``."""
    (folder / "tiny.toml").write_text(TINY)
    with chdir(folder):
        CASES[case]()
        if case == "library":
            return {
                "records": _sha(Path("run/records.jsonl").read_bytes()),
                "model": _sha(Path("run/model.safetensors").read_bytes()),
            }
        return hashes(Path("run"))


if __name__ == "__main__":
    os.environ["GDPFED_CACHE"] = "off"
    kept = json.loads(KEPT.read_text())
    here = kept.setdefault(arithmetic(), {})
    for case in [case for case in CASES if case not in here]:
        with tempfile.TemporaryDirectory() as folder:
            here[case] = made(case, Path(folder))
            sys.stdout.write(f"{case}\n")
    KEPT.write_text(json.dumps(kept, indent=1) + "\n")
