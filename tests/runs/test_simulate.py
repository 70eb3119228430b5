import dataclasses
import itertools
import json
import math
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch

from gdpfed.errors import InputError, PrivacyError
from gdpfed.planning.methods import METHODS, make_plan
from gdpfed.planning.plan_file import plan_hash
from gdpfed.planning.spent import spent_so_far
from gdpfed.privacy.accountant import SampledGaussian, epsilon_bound, epsilon_of
from gdpfed.runs import simulate as simulation
from gdpfed.runs.folder import STAMP, create_run, open_run
from gdpfed.runs.simulate import prepare, simulate
from gdpfed.tasks.task import Task, load_task, task_to_toml
from gdpfed.training.clients.cohort import CohortTrainer
from tests.runs.conftest import start

pytestmark = pytest.mark.training


def content(path: Path) -> tuple[bytes, bytes, bytes]:
    return tuple(
        (path / name).read_bytes() for name in ("records.jsonl", "model.safetensors", "checkpoint.safetensors")
    )  # type: ignore[return-value]


def test_same_seed_same_bytes(tiny: Task, tmp_path: Path) -> None:
    results = []
    for number, (workers, chunk) in enumerate([(1, None), (2, None), (2, 1), (3, 4)]):
        run = start(tiny, tmp_path / str(number))
        simulate(run, num_workers=workers, chunk=chunk)
        results.append(content(run.path))
    assert len(set(results)) == 1
    other = start(tiny, tmp_path / "other", seed=2)
    simulate(other, num_workers=2)
    assert content(other.path)[1] != results[0][1]


def test_a_run_stays_on_its_kind_of_device(tiny: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = start(tiny, tmp_path / "run", num_rounds=2)
    with monkeypatch.context() as patch:
        # Rounds that say "cuda", from the CPU: what is recorded and refused does not ask who computed.
        patch.setattr(CohortTrainer, "device", property(lambda _: "cuda", lambda *_: None), raising=False)
        simulate(run, num_workers=1)
    assert [record.device for record in run.records()] == ["cuda"]
    (run.path / "model.safetensors").unlink()
    with pytest.raises(InputError, match=r"expected the device .cuda., on which .* got 'cpu'"):
        simulate(open_run(run.path), num_workers=1)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_trains(method: str, tiny: Task, tmp_path: Path) -> None:
    run = start(tiny, tmp_path / "run", method=method, num_rounds=2)
    seen = []
    final = simulate(run, num_workers=2, watch=seen.append)
    assert 0 < final.accuracy <= 100
    assert [progress.record.round_number for progress in seen] == [0, 1]
    assert open_run(run.path).is_finished
    (record,) = run.records()
    assert record.round_number == 2
    assert sum(record.cohort) > 0


def test_learning_happens(tiny: Task, tmp_path: Path) -> None:
    run = start(tiny, tmp_path / "run", method="fedavg", num_rounds=40, participation=0.02)
    assert simulate(run, num_workers=2).accuracy > 45


def test_spent_so_far_ends_at_the_plans_epsilon(tiny: Task) -> None:
    plan = make_plan(tiny.budgets, tiny.settings)
    spent = [spent_so_far(plan, rounds) for rounds in range(plan.num_rounds + 1)]
    assert spent[0] == (0.0, 0.0)
    assert spent[-1] == tuple(group.epsilon_release for group in plan.groups)
    for before, after in itertools.pairwise(spent):
        assert all(earlier <= later for earlier, later in zip(before, after, strict=True))
    free = make_plan(tiny.budgets, dataclasses.replace(tiny.settings, method="fedavg"))
    assert spent_so_far(free, 3) == (math.inf,)


@pytest.mark.parametrize("accountant", ["pld", "rdp"])
def test_the_quick_bound_is_a_bound(accountant: str) -> None:
    for noise, rate, rounds in ((0.8, 0.02, 7), (1.5, 0.3, 20), (2.0, 1.0, 5)):
        judged = SampledGaussian(noise_multiplier=noise, sampling_rate=rate, num_rounds=rounds)
        exact = epsilon_of(judged, delta=1e-5, accountant=accountant)  # type: ignore[arg-type]
        bound = epsilon_bound(judged, delta=1e-5, accountant=accountant)  # type: ignore[arg-type]
        assert exact <= bound <= 1.02 * exact


def test_a_run_folder_says_what_it_is(tiny: Task, tmp_path: Path) -> None:
    run = start(tiny, tmp_path / "run")
    simulate(run, num_workers=1)
    names = {path.name for path in run.path.iterdir()}
    assert {
        "run.toml",
        "plan.toml",
        "records.jsonl",
        "timing.jsonl",
        "model.safetensors",
        "versions.json",
        "events",
    } <= names
    assert STAMP in (run.path / "run.toml").read_text()
    versions = json.loads((run.path / "versions.json").read_text())
    assert versions["plan"] == plan_hash(run.plan)
    assert versions["seed"] == 1
    assert any((run.path / "events").iterdir())
    again = load_task(str(run.path / "run.toml"))
    assert (again.settings, again.training) == (run.task.settings, run.task.training)
    from safetensors.torch import load_file

    assert sum(tensor.numel() for tensor in load_file(run.path / "model.safetensors").values()) == 21_840


def test_budgets_from_a_file_travel_with_the_run(tmp_path: Path) -> None:
    lines = "".join(f"c{index},{1 + index % 2}\n" for index in range(900))
    (tmp_path / "clients.csv").write_text("client,epsilon\n" + lines)
    (tmp_path / "own.toml").write_text('budgets = "clients.csv"\nnum_rounds = 1\nparticipation = 0.01\n')
    task = load_task(str(tmp_path / "own.toml"))
    run = create_run(tmp_path / "run", task=task, plan=make_plan(task.budgets, task.settings), seed=3)
    (tmp_path / "clients.csv").unlink()
    assert open_run(run.path).task.budgets.epsilons.tolist() == task.budgets.epsilons.tolist()
    simulate(open_run(run.path), num_workers=1)
    assert task_to_toml(task).startswith("title = ")


def test_files_of_runs_against_models_stay_as_they_were(tiny: Task) -> None:
    """What came with rotations stands in their files only: names and records of earlier runs follow from the text."""
    assert tiny.settings.against == "models"
    assert not {"against", "ask_cost", "asks", "trainings"} & set(tomllib.loads(task_to_toml(tiny)))
    settings = dataclasses.replace(tiny.settings, against="server", asks=2)
    content = tomllib.loads(task_to_toml(dataclasses.replace(tiny, settings=settings)))
    assert (content["against"], content["asks"], content.get("ask_cost", 0.25)) == ("server", 2, 0.25)


def test_groups_do_not_follow_the_order_of_the_data(tiny: Task) -> None:
    plan = make_plan(tiny.budgets, tiny.settings)
    prepared = prepare(tiny, plan, seed=1, num_workers=1)
    assert np.bincount(prepared.assignment).tolist() == [600, 600]
    assert 200 < int(prepared.assignment[:600].sum()) < 400
    prepared.trainer.close()


def test_a_model_that_returns_nan_does_not_stop_the_run(
    tiny: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.nn.Linear(784, 10)

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return self.inner(images.flatten(1)) * float("nan")

    monkeypatch.setattr(simulation, "build_model", lambda *_args, **_sizes: Broken())
    run = start(tiny, tmp_path / "run", num_rounds=2)
    simulate(run, num_workers=2)
    (record,) = run.records()
    assert record.dropped == sum(record.cohort)
    assert record.clipped == 0


def test_batch_norm_is_refused(tiny: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    normed = torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.Flatten())
    monkeypatch.setattr(simulation, "build_model", lambda *_args, **_sizes: normed)
    with pytest.raises(PrivacyError, match="GroupNorm"):
        prepare(tiny, make_plan(tiny.budgets, tiny.settings), seed=1, num_workers=1)


@pytest.mark.parametrize(
    ("training", "named"),
    [
        ({"dataset": "mnist"}, "fmnist"),
        ({"model": "small-cn"}, "did you mean 'small-cnn'"),
        ({"partition": "natural"}, "owners"),
    ],
)
def test_bad_tasks_are_refused(tiny: Task, training: dict[str, object], named: str) -> None:
    task = dataclasses.replace(tiny, training=dataclasses.replace(tiny.training, **training))  # type: ignore[arg-type]
    with pytest.raises(InputError, match=named):
        prepare(task, make_plan(task.budgets, task.settings), seed=1, num_workers=1)


def test_more_clients_than_examples_are_refused(tiny: Task) -> None:
    from gdpfed.privacy.budgets import parse_compact

    crowded = dataclasses.replace(tiny, budgets=parse_compact("10000@1,10000@4"))
    with pytest.raises(InputError, match="client"):
        prepare(crowded, make_plan(crowded.budgets, crowded.settings), seed=1, num_workers=1)


def test_accuracy_by_budget_is_of_each_budgets_classes(tiny: Task, tmp_path: Path) -> None:
    """A model that always says class 0 is right as often as a budget's clients have class 0."""
    training = dataclasses.replace(tiny.training, partition="dirichlet", concentration=0.3, group_skew=1.0)
    task = dataclasses.replace(tiny, training=training)
    plan = make_plan(task.budgets, task.settings)
    made = prepare(task, plan, seed=1, num_workers=1)
    try:
        constant = torch.zeros_like(made.work().initial)
        constant[-10] = 1.0
        found = made.evaluate(constant)
    finally:
        made.trainer.close()
    strict, lax = found.by_budget
    assert made.label_mix is not None
    assert (strict, lax) == pytest.approx(tuple(100 * made.label_mix[:, 0]))
    assert strict > lax + 10
    assert found.accuracy == pytest.approx(10)


def test_validation_images_are_nobodys(tiny: Task) -> None:
    task = dataclasses.replace(tiny, training=dataclasses.replace(tiny.training, validation=3000))
    made = prepare(task, make_plan(task.budgets, task.settings), seed=1, num_workers=1)
    whole = prepare(tiny, made.plan, seed=1, num_workers=1)
    try:
        held = [made.trainer._trainer.data.inputs, made.test_inputs]
        assert torch.equal(torch.cat(held), whole.trainer._trainer.data.inputs)
        assert len(made.test_labels) == 3000
        assert max(int(part.max()) for part in made.trainer._trainer.data.members) < 15_000
    finally:
        made.trainer.close()
        whole.trainer.close()


def test_averaged_models_are_what_is_kept(tiny: Task, tmp_path: Path) -> None:
    from safetensors.torch import load_file

    run = start(tiny, tmp_path / "run", averaging=0.8, num_rounds=3)
    simulate(run, num_workers=1)
    state = run.load_checkpoint()
    assert state is not None
    assert state.average is not None
    kept = torch.cat([tensor.flatten() for _, tensor in sorted(load_file(run.path / "model.safetensors").items())])
    assert sorted(kept.tolist()) == sorted(state.average.float().tolist())
    plain = start(tiny, tmp_path / "plain", num_rounds=3)
    simulate(plain, num_workers=1)
    assert "average" not in load_file(plain.path / "checkpoint.safetensors")
