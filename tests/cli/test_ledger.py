"""The ledger from the command line."""

import json
from pathlib import Path

import pytest

from tests.cli.test_cli import call
from tests.runs.conftest import TINY


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.toml").write_text(TINY)
    return "tiny.toml"


@pytest.mark.training
def test_a_ledger_from_init_to_receipt(tiny: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = call(capsys, "ledger", "init", "book", "600@1.2,600@4.8", "--population", "people")
    assert code == 0, err
    assert "1,200 clients" in out
    train = ("train", tiny, "--ledger", "book", "--rounds", "4", "--workers", "1", "--method", "gdpfed")
    code, out, err = call(capsys, *train, "--out", "one")
    assert code == 0, err
    assert "charged to" in out
    assert "over all runs of the ledger" in out
    # A second run does not fit: refused before there is a folder.
    code, _, err = call(capsys, *train, "--out", "two")
    assert code == 2
    assert "of 4 rounds would fit" in err
    assert not (tmp_path / "two").exists()

    code, out, err = call(capsys, "ledger", "status", "book")
    assert code == 0, err
    assert "group 1" in out
    told = json.loads(call(capsys, "ledger", "status", "book", "--json")[1])
    strict = told["groups"][0]
    assert (strict["epsilon"], strict["charged"], strict["published"], strict["lost"]) == (1.2, 4, 4, 0)
    assert strict["promised"] == strict["spent_release"] <= 1.0
    assert told["populations"][0]["clients"] == 1200

    told = json.loads(call(capsys, "ledger", "clients", "book", "0", "700", "--json")[1])
    assert [one["client"] for one in told] == ["0", "700"]
    assert told[0]["spent_release"] == strict["spent_release"]
    _, out, _ = call(capsys, "ledger", "clients", "book", "--worst", "3")
    assert "participations" in out
    told = json.loads(call(capsys, "ledger", "history", "book", "--points", "1", "--json")[1])
    assert [one["round_number"] for one in told] == [0, 1, 2, 3] * 2
    assert told[3]["epsilon_release"] == strict["spent_release"]
    assert "published" in call(capsys, "ledger", "history", "book", "--points", "0")[1]

    told = json.loads(call(capsys, "ledger", "verify", "book", "--json")[1])
    assert (told["charges"], told["published"], told["sealed"]) == (8, 8, True)
    assert call(capsys, "ledger", "verify", "book", "--head", told["head"])[0] == 0

    printed = json.loads(call(capsys, "ledger", "receipt", "book", "5", "--out", "five.json", "--json")[1])
    assert printed == json.loads((tmp_path / "five.json").read_text())
    told = json.loads(call(capsys, "ledger", "receipt", "five.json", "--check", "--json")[1])
    assert (told["holds"], told["key_was_given"], told["client"]) == (True, False, "5")
    code, out, err = call(capsys, "ledger", "receipt", "five.json", "--check")
    assert code == 0, err
    assert "client 5 spent epsilon" in out
    (tmp_path / "five.json").write_text((tmp_path / "five.json").read_text().replace('"5"', '"6"'))
    code, _, err = call(capsys, "ledger", "receipt", "five.json", "--check")
    assert code == 2
    assert "edited" in err
    told = json.loads(call(capsys, "ledger", "export", "book", "clients.csv", "--json")[1])
    assert told == {"file": "clients.csv", "what": "clients", "count": 1200}
    assert len((tmp_path / "clients.csv").read_text().splitlines()) == 1201


@pytest.mark.training
def test_the_rest_is_planned_and_trained(tiny: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The loop: a run, a refusal that says what to do, a plan for what is left, a run to its end, and its report."""
    assert call(capsys, "ledger", "init", "book", "600@1.2,600@4.8")[0] == 0
    train = ("train", tiny, "--ledger", "book", "--workers", "1")
    assert call(capsys, *train, "--rounds", "4", "--out", "one")[0] == 0
    for rounds in ("4", "2"):
        code, _, err = call(capsys, *train, "--rounds", rounds, "--out", "two")
        assert code == 2
        assert "gdpfed ledger plan makes a plan for what is left" in err
    asked = ("--rounds", "4", "--participation", "0.01")
    code, out, err = call(capsys, "ledger", "plan", "book", *asked, "--out", "rest.toml")
    assert code == 0, err
    assert "gdpfed train TASK --plan rest.toml --ledger book" in out
    assert "1,200 clients take part, 0 have nothing left" in out
    code, _, err = call(capsys, *train, "--plan", "rest.toml", "--rounds", "3", "--out", "two")
    assert code == 2
    assert "expected --plan, or settings to make one with, got both (num_rounds)" in err
    code, out, err = call(capsys, *train, "--plan", "rest.toml", "--out", "two")
    assert code == 0, err
    assert call(capsys, "ledger", "verify", "book")[0] == 0
    strict, *_ = json.loads(call(capsys, "ledger", "status", "book", "--json")[1])["groups"]
    assert 0.97 * 1.2 < strict["spent_release"] <= 1.2
    assert 0 < strict["left"] < 0.5
    # The second run on a ledger is nobody's edit.
    for run, plan in (("one", "one/plan.toml"), ("two", "rest.toml")):
        (method,) = json.loads(call(capsys, "report", run, "--json")[1])["methods"]
        (planned,) = json.loads(call(capsys, "report", plan, "--json")[1])["methods"]
        cost, own = method["costs"][0], planned["costs"][0]["spent_release"]
        assert cost["spent_release"] == own
        assert (cost["spent_over_all_runs"] == own) == (run == "one")
    assert cost["spent_over_all_runs"] == strict["spent_release"]


@pytest.mark.training
def test_a_rest_by_name_is_trained(tiny: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Against the server; half of the clients joined after the others' run."""
    assert call(capsys, "ledger", "init", "book", "600@1.2")[0] == 0
    train = ("train", tiny, "--ledger", "book", "--workers", "1")
    code, _, err = call(capsys, *train, "--rounds", "2", "--budgets", "600@1", "--out", "one")
    assert code == 0, err
    assert call(capsys, "ledger", "join", "book", "600@1.2")[0] == 0
    asked = ("--against", "server", "--asks", "2", "--trainings", "0.04", "--rounds", "4", "--method", "gdpfed")
    code, _, err = call(capsys, "ledger", "plan", "book", *asked, "--out", "coins.toml")
    assert code == 2
    assert "expected --budgets FILE with --out, since clients with equal budgets have different pasts" in err
    assert not (tmp_path / "coins.toml").exists()
    code, out, err = call(capsys, "ledger", "plan", "book", *asked, "--out", "coins.toml", "--budgets", "who.csv")
    assert code == 0, err
    assert "--plan coins.toml --ledger book --budgets who.csv" in out
    code, _, err = call(capsys, *train, "--plan", "coins.toml", "--out", "two")
    assert code == 2
    assert "groups were given by a column 'group', which these budgets lack" in err
    code, out, err = call(capsys, *train, "--plan", "coins.toml", "--budgets", "who.csv", "--out", "two")
    assert code == 0, err
    assert "over all runs of the ledger" in out
    assert call(capsys, "resume", "two")[0] == 0
    assert call(capsys, "ledger", "verify", "book")[0] == 0
    assert call(capsys, "report", "two", "--md")[0] == 0


def test_budgets_change_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(tmp_path / "book")
    assert call(capsys, "ledger", "init", path, "10@1")[0] == 0
    told = json.loads(call(capsys, "ledger", "join", path, "5@2", "--json")[1])
    assert told == {"population": "clients", "joined": 5, "clients": 15}
    told = json.loads(call(capsys, "ledger", "tighten", path, "1", "2", "--epsilon", "0.5", "--json")[1])
    assert (told["tightened"], told["epsilon"], told["delta"]) == (["1", "2"], 0.5, None)
    assert json.loads(call(capsys, "ledger", "leave", path, "3", "--json")[1])["left"] == ["3"]
    told = json.loads(call(capsys, "ledger", "clients", path, "1", "3", "14", "--json")[1])
    assert [(one["epsilon"], one["has_left"]) for one in told] == [(0.5, False), (1.0, True), (2.0, False)]
    code, _, err = call(capsys, "ledger", "tighten", path, "1")
    assert code == 2
    assert "--epsilon or --delta" in err
    code, _, err = call(capsys, "ledger", "close", path, "nothing")
    assert code == 2
    assert "no run 'nothing'" in err
    code, _, err = call(capsys, "ledger", "status", str(tmp_path / "other"))
    assert code == 2
    assert "gdpfed ledger init" in err
    code, _, err = call(capsys, "ledger", "init", path, "3@1", "--population", "others")
    assert code == 2
    assert "other_people" in err
    assert call(capsys, "ledger", "init", path, "3@1", "--population", "others", "--other-people")[0] == 0
    code, _, err = call(capsys, "ledger", "leave", path, "1")
    assert code == 2
    assert "expected --population, one of clients, others" in err
