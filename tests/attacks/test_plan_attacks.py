"""Attacks on what a plan promises. Each is performed and must fail; with the fix taken out it must succeed (teeth)."""

import dataclasses
import math
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from gdpfed.cli import main
from gdpfed.errors import InputError, PrivacyError
from gdpfed.flower.shared.terms import Terms
from gdpfed.planning import people as members
from gdpfed.planning import plan_file
from gdpfed.planning.methods import make_plan
from gdpfed.planning.plan import Plan, guaranteed
from gdpfed.planning.plan_file import load_plan, plan_to_toml, save_plan
from gdpfed.planning.settings import PlanSettings
from gdpfed.privacy import accountant, cache, pld
from gdpfed.privacy.accountant import SampledGaussian, epsilon_bound, epsilon_of
from gdpfed.privacy.budgets import budgets_csv, parse_compact, read_budgets
from gdpfed.runs.folder import RunFolder, create_run, open_run
from gdpfed.runs.loop import Progress
from gdpfed.runs.simulate import simulate
from gdpfed.tasks.task import Task, load_task
from tests.attacks.defences import without_the_rule

Printed = tuple[int, str]


def call(capsys: pytest.CaptureFixture[str], *arguments: str) -> Printed:
    """Exit code and all that is printed, on one line."""
    with pytest.raises(SystemExit) as stopped:
        main(list(arguments))
    captured = capsys.readouterr()
    return int(stopped.value.code or 0), re.sub(r"[\s│]+", " ", captured.out + captured.err)


# 1. A promise that is empty: delta is above the probability of taking part, so epsilon is 0 with next to no noise.

BARE = {"delta": 1e-5, "sampling_rate": 1e-7, "noise_multiplier": 0.2}


def bare_plan() -> Plan:
    """A fraction of the noise that a budget of 1 needs at rate 1; every claim in it is what comes out."""
    plan = make_plan(parse_compact("100@1"), PlanSettings(method="dp-fedavg", num_rounds=2, participation=0.2))
    with without_the_rule():
        return guaranteed(dataclasses.replace(plan, groups=(dataclasses.replace(plan.groups[0], **BARE),)))


def in_terms(path: Path) -> Plan:
    """As a node checks the plan that a server sends."""
    terms = Terms(
        run="run",
        plan=path.read_text(),
        dropout_rate=0.1,
        colluding_fraction=0.1,
        complete_up_to=100,
        enrolment=bytes(32),
        num_params=1,
    )
    return terms.verified_plan()


def test_an_empty_promise_does_not_load(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = bare_plan()
    assert plan.groups[0].epsilon_release == 0
    assert plan.groups[0].noise_std < 0.21 * plan.clip_norm
    save_plan(plan, tmp_path / "plan.toml")
    readers: list[Callable[[Path], Plan]] = [load_plan, in_terms]
    for read in readers:
        with pytest.raises(PrivacyError, match="takes part at all, got delta=1e-05 and the probability 2e-07"):
            read(tmp_path / "plan.toml")
    code, said = call(capsys, "verify", str(tmp_path / "plan.toml"))
    assert (code, "takes part at all" in said) == (2, True)
    with without_the_rule():
        assert [read(tmp_path / "plan.toml") for read in readers] == [plan, plan]
        assert call(capsys, "verify", str(tmp_path / "plan.toml"))[0] == 0


@pytest.mark.training
def test_an_empty_promise_is_neither_planned_nor_accounted(capsys: pytest.CaptureFixture[str]) -> None:
    settings = PlanSettings(
        method="gdpfed", num_rounds=2, delta=1e-5, rates=(1e-7,), noise_multipliers=(0.2,), weights="inverse-variance"
    )
    with pytest.raises(PrivacyError, match="takes part at all"):
        make_plan(parse_compact("100@1"), settings)
    with without_the_rule():
        assert make_plan(parse_compact("100@1"), settings).groups[0].epsilon_release == 0
    for asked in ("--rate 1e-7 --delta 1e-5 --rounds 2", "--rate 0.01 --delta 0.1 --epsilon 0.5"):
        code, said = call(capsys, "account", "--noise-multiplier", "0.2", *asked.split())
        assert (code, "takes part at all" in said) == (2, True)


def test_a_persons_promise_may_not_be_empty_either(tmp_path: Path) -> None:
    """Two clients with a delta of their own, which take part rarely: the person's delta is that of the laxest group."""
    rows = ["client,epsilon,delta", "a,1,1e-9", "b,1,1e-9", *(f"c{number},4,1e-2" for number in range(20))]
    (tmp_path / "clients.csv").write_text("\n".join(rows))
    budgets = read_budgets(tmp_path / "clients.csv")
    settings = PlanSettings(method="gdpfed", num_rounds=2, rates=(1e-3, 0.5), linked=(("a", "b"),))
    with pytest.raises(PrivacyError, match=r"a person in 2 clients takes part at all, got delta=1e-02 and .* 0\.00399"):
        make_plan(budgets, settings)
    with without_the_rule():
        plan = make_plan(budgets, settings)
    # The person would have been told the epsilon of somebody else: at that delta its own is 0.
    assert plan.epsilon_person == plan.groups[1].epsilon_release
    make_plan(budgets, dataclasses.replace(settings, rates=(0.1, 0.5)))


# 2. Linked people: the same sizes of groups, other people in them.


@pytest.fixture
def swapped(tmp_path: Path) -> tuple[Path, Path, Path]:
    """A plan for two strict clients of one person; its budgets; and budgets in which the two are lax."""
    others = [f"c{number},{1 + 2 * (number % 2)}" for number in range(8)]
    for name, strict, lax in (("honest", "ab", "xy"), ("swapped", "xy", "ab")):
        rows = ["client,epsilon", *(f"{client},1" for client in strict), *(f"{client},3" for client in lax), *others]
        (tmp_path / f"{name}.csv").write_text("\n".join(rows))
    plan = make_plan(read_budgets(tmp_path / "honest.csv"), LINKED)
    save_plan(plan, tmp_path / "plan.toml")
    return tmp_path / "plan.toml", tmp_path / "honest.csv", tmp_path / "swapped.csv"


LINKED = PlanSettings(method="gdpfed", num_rounds=2, participation=0.5, delta=1e-3, linked=(("a", "b"),))


def test_linked_people_cannot_be_swapped(
    swapped: tuple[Path, Path, Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan_path, honest, other = swapped
    attack = ("verify", str(plan_path), "--delta", "1e-3", "--budgets")
    assert call(capsys, *attack, str(honest))[0] == 0
    code, said = call(capsys, *attack, str(other))
    assert (code, "its person-level epsilon may be false" in said) == (2, True)
    plan = load_plan(plan_path)
    with pytest.raises(PrivacyError, match="put clients into other groups"):
        members.assign(plan, read_budgets(other))
    with pytest.raises(InputError, match="name their clients"):
        members.assign(plan, dataclasses.replace(read_budgets(honest), clients=None))
    # Teeth: sizes alone do not see it, and the truth is more than what is stated.
    monkeypatch.setattr(members, "_check_linked", lambda *_: None)
    code, said = call(capsys, *attack, str(other))
    assert (code, "verified" in said) == (0, True)
    truth = make_plan(read_budgets(other), LINKED).epsilon_person
    assert plan.epsilon_person is not None
    assert truth is not None
    assert truth > 1.5 * plan.epsilon_person


def test_linked_people_stay_in_their_groups(swapped: tuple[Path, Path, Path]) -> None:
    """Order does not matter, nor a budget that stays in its group; a name that moves does."""
    plan_path, honest, _ = swapped
    plan, budgets = plan_file.plan_from_toml(plan_path.read_text(), is_verified=True), read_budgets(honest)
    assert budgets.clients is not None
    order = np.random.default_rng(1).permutation(len(budgets))
    shuffled = dataclasses.replace(
        budgets, epsilons=budgets.epsilons[order], clients=tuple(budgets.clients[place] for place in order)
    )
    assert members.assign(plan, shuffled).tolist() == members.assign(plan, budgets)[order].tolist()
    members.assign(plan, dataclasses.replace(budgets, epsilons=budgets.epsilons * 1.01))
    renamed = tuple({"a": "x", "x": "a"}.get(client, client) for client in budgets.clients)
    with pytest.raises(PrivacyError, match="or names, put clients into other groups"):
        members.assign(plan, dataclasses.replace(budgets, clients=renamed))


def test_linked_people_are_bound(swapped: tuple[Path, Path, Path]) -> None:
    """An old plan has counts only; and no plan tells who is linked to whom."""
    text = swapped[0].read_text()
    assert not re.search(r'"[abxy]"', text)
    old = re.sub("assignment_digest = .*\n", "", text)
    assert old != text
    with pytest.raises(PrivacyError, match="plans of older versions: make the plan again"):
        plan_file.plan_from_toml(old)
    with pytest.raises(InputError, match="SHA-256 in hexadecimal"):
        plan_file.plan_from_toml(re.sub('assignment_digest = ".*"', 'assignment_digest = "abc"', text))
    plain = make_plan(read_budgets(swapped[1]), dataclasses.replace(LINKED, linked=()))
    assert "assignment" not in plan_to_toml(plain)


# 3. An epsilon that is no number passes every comparison that asks whether it is too large.

TINY_NOISE = SampledGaussian(noise_multiplier=0.03, sampling_rate=1e-7, num_rounds=1)


def old_round_curve(epsilons: pld.FloatArray, direction: pld.Direction) -> pld.FloatArray:
    """As it was: between 700 + log(rate) and 700 the quotient overflows."""
    right = RIGHT_CURVE(epsilons, direction)
    overflows = (epsilons > 709 + math.log(direction.sampling_rate)) & (epsilons < 700)
    return np.where(overflows & direction.removed, math.nan, right)


RIGHT_CURVE = pld.round_curve


def test_no_epsilon_is_nan(monkeypatch: pytest.MonkeyPatch) -> None:
    right = epsilon_bound(TINY_NOISE, delta=1e-9)
    assert 500 < right < 700
    assert epsilon_of(TINY_NOISE, delta=1e-9) == pytest.approx(right, rel=1e-4)
    # Teeth: with the overflow a NaN arises, and each of two guards refuses it.
    monkeypatch.setattr(pld, "round_curve", old_round_curve)
    for guard, expected in ((accountant._or_infinite, math.inf), (float, math.nan)):
        pld.composed_distribution.cache_clear()
        monkeypatch.setattr(accountant, "_or_infinite", guard)
        assert epsilon_bound(TINY_NOISE, delta=1e-9) == pytest.approx(expected, nan_ok=True)
    pld.composed_distribution.cache_clear()


# 4. A printed delta that is smaller than the delta.


def test_no_printed_delta_flatters(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = make_plan(
        parse_compact("100@1"), PlanSettings(method="dp-fedavg", num_rounds=2, participation=0.5, delta=1.00001e-3)
    )
    save_plan(plan, tmp_path / "plan.toml")
    said = call(capsys, "verify", str(tmp_path / "plan.toml"))[1]
    said += call(
        capsys, "account", "--rate", "0.5", "--noise-multiplier", "2", "--rounds", "2", "--delta", "1.00001e-3"
    )[1]
    printed = [float(value) for value in re.findall(r"(?:delta = |, )(\d[\d.]*e-\d+)", said)]
    assert len(printed) >= 3
    assert min(printed) >= 1.00001e-3
    # Teeth: to nearest it would be less.
    assert float(f"{1.00001e-3:.4g}") < 1.00001e-3


# 5. A run with given groups is lost when it is interrupted.


class InterruptionError(Exception):
    """What ends a session."""


def given_groups(path: Path) -> Task:
    rows = "".join(f"c{number},{1 + number % 3},{'late' if number % 2 else 'early'}\n" for number in range(600))
    (path / "clients.csv").write_text("client,epsilon,group\n" + rows)
    (path / "own.toml").write_text(
        'budgets = "clients.csv"\nmethod = "gdpfed"\ngroups = "given"\nnum_rounds = 4\nparticipation = 0.01\n'
        'linked = [["c1", "c2"]]\nlocal_steps = 1\n[training]\nbatch_size = 5\n'
    )
    return load_task(str(path / "own.toml"))


def interrupted(run: RunFolder, *, after: int) -> None:
    def watch(progress: Progress) -> None:
        if progress.record.round_number + 1 == after:
            raise InterruptionError

    with pytest.raises(InterruptionError):
        simulate(run, num_workers=1, watch=watch)


@pytest.mark.training
def test_a_run_with_given_groups_goes_on(tmp_path: Path) -> None:
    task = given_groups(tmp_path)
    plan = make_plan(task.budgets, task.settings)
    runs = [create_run(tmp_path / name, task=task, plan=plan, seed=3) for name in ("calm", "disturbed", "dropped")]
    simulate(runs[0], num_workers=1)
    interrupted(runs[1], after=2)
    (tmp_path / "clients.csv").unlink()
    simulate(open_run(runs[1].path), num_workers=1)
    for name in ("records.jsonl", "model.safetensors"):
        assert (runs[0].path / name).read_bytes() == (runs[1].path / name).read_bytes()
    # Teeth: as it was, the group column was dropped.
    lines = (runs[2].path / "budgets.csv").read_text().splitlines()
    (runs[2].path / "budgets.csv").write_text("".join(line.rpartition(",")[0] + "\n" for line in lines))
    with pytest.raises(InputError, match="column 'group'"):
        simulate(open_run(runs[2].path), num_workers=1)


def test_budgets_are_read_back(tmp_path: Path) -> None:
    """Odd names and groups, own deltas, linked people: what is written into a run's folder is what is read from it."""
    (tmp_path / "clients.csv").write_text(
        'client,epsilon,delta,group\n"a,b",1.1,1e-3," x"\n"c ""d""",2,,\nü,0.30000000000000004,1e-7,"x\ny"\n'
    )
    (tmp_path / "own.toml").write_text('budgets = "clients.csv"\nlinked = [["a,b", "ü"]]\n')
    task = load_task(str(tmp_path / "own.toml"))
    (tmp_path / "written.csv").write_text(budgets_csv(task.budgets), newline="")
    read = read_budgets(tmp_path / "written.csv")
    assert (read.clients, read.groups) == (task.budgets.clients, task.budgets.groups)
    assert read.epsilons.tolist() == task.budgets.epsilons.tolist()
    assert np.array_equal(read.deltas, task.budgets.deltas, equal_nan=True)
    assert task.settings.linked == (("a,b", "ü"),)


# 6. A remembered value that other code computed.


def test_another_commit_shares_no_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GDPFED_CACHE", str(tmp_path))

    def computed(answer: float) -> float:
        @cache.remembered
        def noise(*, epsilon: float) -> float:
            return answer / epsilon

        cache.forget_memory()
        return noise(epsilon=0.5)

    monkeypatch.setattr(cache, "code_hash", lambda *_: "a commit with a mistake")
    assert computed(0.01) == 0.02
    monkeypatch.setattr(cache, "code_hash", lambda *_: "the commit that corrects it")
    assert computed(1.0) == 2.0
    # Teeth: by version alone the mistake lives on.
    monkeypatch.setattr(cache, "code_hash", lambda *_: "a commit with a mistake")
    assert computed(1.0) == 0.02
