"""Every table at 60 and 80 columns: nothing is cut, and what does not fit is stacked, a block for each row."""

from pathlib import Path

import pytest

from gdpfed.cli.show import table
from tests.cli.test_cli import SMALL, call
from tests.runs.conftest import TINY

EIGHT = ",".join(f"{40 + number}@{1 + number / 2}" for number in range(8))
FEW_ROUNDS = ("--rounds", "3", "--participation", "0.2")


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that is charged to a ledger, and a plan, with long names."""
    from gdpfed.cli import main

    folder = tmp_path_factory.mktemp("widths")
    (folder / "tiny.toml").write_text(TINY.replace('"Tiny"', '"A task with a rather long title, for narrow terminals"'))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for words in (
            ("plan", *SMALL, "--out", "plan.toml"),
            ("ledger", "init", "book.db", "600@1,600@4", "--population", "people"),
            ("train", "tiny.toml", "--rounds", "2", "--ledger", "book.db", "--out", "runs/a-run-with-a-long-name"),
        ):
            with pytest.raises(SystemExit) as ended:
                main(list(words))
            assert not ended.value.code
    return folder


@pytest.mark.training
@pytest.mark.parametrize("width", [60, 80])
@pytest.mark.parametrize(
    ("words", "whole"),
    [
        (("plan", *SMALL), "group 3"),
        (("plan", EIGHT, *FEW_ROUNDS), "group 8"),
        (("plan", "compare", EIGHT, *FEW_ROUNDS, "--methods", "gdpfed,pooled"), "pooled"),
        (("plan", "frontier", "60@1,90@2", *FEW_ROUNDS, "--method", "gdpfed"), "server *"),
        (("verify", "plan.toml"), "group 3"),
        (("account", "--delta", "1e-5", "--rate", "0.1", "--rounds", "5", "--epsilon", "2"), "epsilon server, most"),
        (("audit", "plan.toml", "--canaries", "200", "--mechanism", "float"), "one noise key for all rounds"),
        (("data", "list"), "shakespeare"),
        (("data", "check", "fmnist-mini"), "fmnist-mini"),
        (("ledger", "status", "book.db"), "a-run-with-a-long-name"),
        (("ledger", "clients", "book.db", "0", "1199"), "1199"),
        (("ledger", "history", "book.db"), "a-run-with-a-long-name"),
        (("show", "runs"), "gdpfed+"),
        (("reproduce", "status", "--datasets", "fmnist"), "sparsification"),
    ],
)
def test_nothing_is_cut(
    here: Path,
    width: int,
    words: tuple[str, ...],
    whole: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(here)
    monkeypatch.setenv("COLUMNS", str(width))
    code, out, err = call(capsys, *words)
    assert code in (0, 1), err
    assert "…" not in out
    assert any(whole in line for line in out.splitlines())
    assert max((len(line) for line in out.splitlines() if line[:1] in "┏┡│└ "), default=0) <= width


def test_what_does_not_fit_is_stacked(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from rich.console import Console

    wide = table("Costs", ["name", "first", "second"], [["x" * 30, "1" * 20, ""], ["y", "2", "3"]])
    assert wide.fits(80)
    assert not wide.fits(60)
    Console(width=60).print(wide)
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert lines == ["Costs", "x" * 30, "  first  " + "1" * 20, "y", "  first   2", "  second  3"]


def test_the_time_left_comes_first(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Also on a narrow terminal, where the end of the line is not seen."""
    import sys
    from types import SimpleNamespace

    from rich.console import Console

    from gdpfed.cli import train_commands

    progress = SimpleNamespace(
        record=SimpleNamespace(round_number=2),
        evaluation=SimpleNamespace(accuracy=50.0, loss=1.0, measure="accuracy", metrics=None),
        epsilons=(1.0,) * 8,
        clients_per_second=100.0,
    )
    with train_commands._watching(30, quiet=False) as watch:
        watch(progress)  # type: ignore[arg-type, misc]  # what it reads of a Progress
    assert " s left  round   3/30  accuracy 50.00 %" in capsys.readouterr().out.strip()[:50]
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    screen = Console(width=60, force_terminal=True, no_color=True)
    monkeypatch.setattr(train_commands, "console", lambda: screen)
    with train_commands._watching(30, quiet=False) as watch:
        watch(progress)  # type: ignore[arg-type, misc]
    shown = capsys.readouterr().out
    assert "0 s left ━" in shown
    assert "round   3/30" in shown
