import json
import os
import random
import shutil
from pathlib import Path

import numpy as np
import pytest

import gdpfed.ledger.book as writing
from gdpfed.errors import InputError
from gdpfed.ledger.book import Ledger
from gdpfed.ledger.store import Store
from gdpfed.planning.plan_file import plan_hash, plan_to_toml, save_plan
from gdpfed.privacy.budgets import Budgets
from gdpfed.runs.check import Checked, check_paths
from gdpfed.runs.link import LedgerLink
from tests.ledger.books import TWO, book, plan_for, play, start

KEY = bytes(range(32))


def private(path: Path, content: bytes | str) -> None:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    path.chmod(0o600)


def make_node(folder: Path, budget: str = "epsilon = 1.0\ndelta = 1e-5\nname = 'x'\n") -> Path:
    folder.mkdir()
    private(folder / "identity.key", KEY)
    private(folder / "budget.toml", budget)
    with_row = {"terms": "aa", "run": "r", "group": 0, "noise_multiplier": 2.0, "sampling_rate": 0.1, "num_rounds": 3}
    store = Store.create(folder / "spend.db")
    store.append([("join", with_row)])
    store.close()
    return folder


def make_server(folder: Path, settings: str = "colluding_fraction = 0.1\n") -> Path:
    folder.mkdir()
    private(folder / "server.key", KEY)
    private(folder / "settings.toml", settings)
    save_plan(plan_for(TWO), folder / "plan.toml")
    with book(folder, text=TWO, name="ledger") as ledger:
        start(ledger, text=TWO)
    return folder


def make_run(folder: Path, *, ledger: Path | None = None, run: str = "run") -> Path:
    """What `create_run` writes, as far as it is looked at."""
    folder.mkdir()
    save_plan(plan_for(TWO), folder / "plan.toml")
    (folder / "versions.json").write_text(json.dumps({"plan": plan_hash(plan_for(TWO)), "seed": 1}))
    if ledger is not None:
        (folder / "ledger.json").write_text(LedgerLink(path=ledger, population="people", run=run).as_json())
    (folder / "run.toml").write_text("# A gdpfed run.\ntitle = 'x'\n")
    (folder / "records.jsonl").write_text("{}\n")
    return folder


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """One of everything, all sound."""
    top = tmp_path / "top"
    (top / "deep" / "er").mkdir(parents=True)
    make_node(top / "node")
    make_server(top / "server")
    make_run(top / "server" / "run", ledger=top / "server" / "ledger")
    (top / "deep" / "er" / "any name.toml").write_text(plan_to_toml(plan_for(TWO)))
    (top / "deep" / "task.toml").write_text("budgets = '60@1'\ngroups = [0.5, 1.0]\n")
    (top / "deep" / "notes.toml").write_text("this is no TOML at all {{{")
    with book(top / "deep", text=TWO, factor=1.2, name="no such ending") as ledger:
        start(ledger, text=TWO)
        play(ledger, "run", range(3))
    return top


def by_name(top: Path, *paths: Path) -> dict[str, Checked]:
    found = list(check_paths(paths or (top,)))
    made = {str(one.path.relative_to(top)): one for one in found}
    assert len(made) == len(found)
    return made


def snapshot(top: Path) -> dict[str, tuple[int, int, bytes]]:
    return {
        str(path.relative_to(top)): (path.lstat().st_mode, path.lstat().st_mtime_ns, path.read_bytes())
        for path in sorted(top.rglob("*"))
        if path.is_file()
    }


def problem(found: dict[str, Checked], name: str) -> str:
    assert [one for one, finding in found.items() if not finding.is_sound] == [name]
    return " ".join(found[name].problems)


def test_nothing_is_modified(tree: Path) -> None:
    before = snapshot(tree)
    found = by_name(tree)
    assert {name: one.kind for name, one in found.items()} == {
        "node": "node home",
        "node/spend.db": "node ledger",
        "server": "server home",
        "server/ledger": "ledger",
        "server/run": "run",
        "deep/er/any name.toml": "plan",
        "deep/no such ending": "ledger",
    }
    assert all(one.is_sound for one in found.values()), found
    assert snapshot(tree) == before


def test_doubled_clients_are_found(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    people = Budgets(epsilons=np.ones(2), deltas=np.full(2, 1e-3), clients=("ana", "ben"))
    with monkeypatch.context() as earlier, Ledger.create(tree / "deep" / "old") as ledger:
        earlier.setattr(writing, "check_new_clients", lambda *_, **__: None)
        ledger.add_population("a", people)
        ledger.add_population("b", people)
    told = problem(by_name(tree), "deep/old")
    assert "'ana', 'ben'" in told
    assert "gdpfed ledger leave" in told
    # Also where something else is wrong.
    with Ledger.open(tree / "deep" / "old") as ledger:
        ledger.store.append([("close", {"run": "none", "spent": {}})])
    found = by_name(tree)["deep/old"]
    assert "cannot follow" in found.problems[0]


@pytest.mark.training
def test_plans_are_verified_again(tree: Path) -> None:
    for name in ("server/plan.toml", "deep/er/any name.toml", "server/run/plan.toml"):
        text = (tree / name).read_text()
        assert "num_rounds = 10\n" in text
        (tree / name).write_text(text.replace("num_rounds = 10\n", "num_rounds = 50\n"))
        shown = name.removesuffix("/plan.toml")
        assert "would spend epsilon" in problem(by_name(tree), shown)
        (tree / name).write_text(text)
    shutil.copy(tree / "server" / "plan.toml", tree / "plan.toml")
    assert by_name(tree)["plan.toml"].is_sound
    (tree / "plan.toml").write_text("format = 1\n")
    assert "[[groups]]" in problem(by_name(tree), "plan.toml")


@pytest.mark.training
def test_damage_is_reported(tree: Path) -> None:
    """Every file cut, emptied, filled with noise, or changed at one place: findings, never an error."""
    generator = random.Random(3)  # noqa: S311 - damage, not secrets
    told = 0
    for path in sorted(path for path in tree.rglob("*") if path.is_file() and path.suffix != ".lock"):
        content = path.read_bytes()
        place = generator.randrange(len(content))
        changed = bytes([content[place] ^ 0x55])
        for damaged in (b"", generator.randbytes(5000), content[:place], content[:place] + changed + content[place:]):
            path.write_bytes(damaged)
            told += sum(not one.is_sound for one in check_paths([path.parent]))
        path.write_bytes(content)
    assert told > 30
    assert all(one.is_sound for one in check_paths([tree]))


def test_what_is_wrong_is_told(tree: Path) -> None:
    (tree / "deep" / "no such ending").write_bytes(b"gone")
    assert "not a database" in problem(by_name(tree), "deep/no such ending")
    (tree / "deep" / "no such ending").unlink()
    assert "restore a copy" in problem(by_name(tree), "deep/no such ending")
    shutil.rmtree(tree / "deep")
    (tree / "server" / "ledger").chmod(0o644)
    assert "chmod 600" in problem(by_name(tree), "server/ledger")
    (tree / "server" / "ledger").chmod(0o600)
    (tree / "node" / "identity.key").chmod(0o640)
    assert "private key: chmod 600" in problem(by_name(tree), "node")
    private(tree / "node" / "identity.key", b"short")
    assert "expected 32 bytes" in problem(by_name(tree), "node")
    private(tree / "node" / "identity.key", KEY)
    (tree / "server" / "run.json").write_text(json.dumps({"run": "x", "plan": "another"}))
    assert "set the plan again" in problem(by_name(tree), "server")
    (tree / "server" / "run.json").write_text("[]")
    assert "is damaged" in problem(by_name(tree), "server")
    (tree / "server" / "run.json").unlink()
    (tree / "server" / "run" / "versions.json").write_text('{"plan": "another"}')
    assert "not the plan that ran" in problem(by_name(tree), "server/run")
    (tree / "server" / "run" / "versions.json").unlink()
    assert "expected versions.json" in problem(by_name(tree), "server/run")


def test_a_run_that_was_not_charged(tmp_path: Path) -> None:
    with book(tmp_path, text=TWO) as ledger:
        start(ledger, plan=plan_for(TWO, rounds=5), text=TWO)
    make_run(tmp_path / "other plan", ledger=tmp_path / "book")
    make_run(tmp_path / "unknown", ledger=tmp_path / "book", run="not there")
    make_run(tmp_path / "moved", ledger=tmp_path / "elsewhere")
    make_run(tmp_path / "new", ledger=tmp_path / "book", run="not there")
    (tmp_path / "new" / "records.jsonl").unlink()
    found = by_name(tmp_path)
    assert "has run 'run' with another plan" in found["other plan"].problems[0]
    assert "has no run 'not there'" in found["unknown"].problems[0]
    assert found["moved"].is_sound
    assert "was not compared" in found["moved"].notes[0]
    assert found["new"].is_sound


def test_a_ledger_that_was_put_back_is_told(tmp_path: Path) -> None:
    """More rounds in the run's records than its ledger has charged: the ledger is an old copy."""
    with book(tmp_path, text=TWO) as ledger:
        start(ledger, text=TWO)
        play(ledger, "run", range(2))
    make_run(tmp_path / "folder", ledger=tmp_path / "book")
    for released, is_sound in ((2, True), (3, False)):
        lines = [json.dumps({"round": number}) for number in range(1, released + 1)]
        (tmp_path / "folder" / "records.jsonl").write_text("\n".join(lines) + '\n{"rou')
        found = by_name(tmp_path)["folder"]
        assert found.is_sound == is_sound
    assert "released 3 rounds" in found.problems[0]
    assert "has charged 2" in found.problems[0]


def test_notes_about_homes_of_earlier_versions(tmp_path: Path) -> None:
    make_node(tmp_path / "old")
    make_node(
        tmp_path / "new", "epsilon = 1\ndelta = 1e-5\nname = 'x'\nepsilon_server = 5.0\ncolluding_fraction = 0.1\n"
    )
    make_node(tmp_path / "bad", "epsilon = -1.0\nname = 'x'\ncolluding_fraction = 'all'\n")
    make_server(tmp_path / "server", "colluding_fraction = 0.0\n")
    found = by_name(tmp_path)
    assert found["old"].is_sound
    assert [note.split(":")[0] for note in found["old"].notes] == [
        "budget.toml states no epsilon_server",
        "budget.toml states no colluding_fraction, or 0",
    ]
    assert found["new"].notes == []
    assert len(found["bad"].problems) == 3
    assert found["server"].is_sound
    assert "colluding_fraction = 0" in found["server"].notes[0]


def test_populations_that_nobody_compared_are_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with book(tmp_path, text=TWO) as ledger, monkeypatch.context() as earlier:
        earlier.setattr(writing, "check_new_clients", lambda *_, **__: None)
        ledger.add_population("again", Budgets(epsilons=np.ones(2), deltas=np.full(2, 1e-3)))
    (tmp_path / "book.key").unlink()
    (found,) = check_paths([tmp_path / "book"])
    assert found.is_sound
    assert "seal was not checked" in found.notes[0]
    assert "clients of 'again' are in another population" in found.notes[1]


def test_links_are_not_followed(tree: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    make_node(outside)
    (outside / "identity.key").chmod(0o644)
    (tree / "loop").symlink_to(tree)
    (tree / "deep" / "out").symlink_to(outside)
    (tree / "deep" / "linked.toml").symlink_to(tree / "server" / "plan.toml")
    (tree / "deep" / "nowhere").symlink_to(tree / "not there")
    os.mkfifo(tree / "deep" / "pipe.toml")
    assert len(by_name(tree)) == 7
    # A link that is given is meant.
    (found, _) = check_paths([tree / "deep" / "out"])
    assert not found.is_sound
    # Given twice, told once.
    assert len(by_name(tree, tree, tree / "deep", tree)) == 7


def test_files_that_are_given(tree: Path) -> None:
    kinds = [one.kind for one in check_paths([tree / "server" / "ledger", tree / "server" / "plan.toml"])]
    assert kinds == ["ledger", "plan"]
    for name in ("deep/task.toml", "server/server.key"):
        (found,) = check_paths([tree / name])
        assert found.kind == "file"
        assert "give the folder" in found.problems[0]
    with pytest.raises(InputError, match="not there"):
        list(check_paths([tree / "nothing"]))


def test_a_folder_that_cannot_be_read_is_told(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scan = os.scandir

    def refused(path: str) -> object:
        if str(path).endswith("deep"):
            raise PermissionError(13, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", refused)
    assert "Permission denied" in problem(by_name(tree), "deep")
