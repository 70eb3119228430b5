"""`gdpfed data` as a user meets it, on small sets and a server of this machine."""

import gzip
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from gdpfed.cli import data_commands as data
from gdpfed.errors import InputError
from gdpfed.tasks.catalogue import CATALOGUE
from tests.tasks.conftest import Server, tiny_fmnist


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, bytes]]:
    """Serves a small Fashion-MNIST, with a cache of the test's own."""
    monkeypatch.setenv("GDPFED_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("GDPFED_DATA", raising=False)
    monkeypatch.setenv("no_proxy", "*")
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        source, made = tiny_fmnist(address=server.address)
        server.serve(made)
        monkeypatch.setitem(CATALOGUE, "fmnist", source)
        yield made
        server.shutdown()
        thread.join()


def call(*arguments: str) -> tuple[str, str]:
    """Standard output and error of a command that works; what it raises otherwise."""
    result = CliRunner().invoke(data.data_app, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout, result.stderr


def test_list_says_what_is_here(files: dict[str, bytes], tmp_path: Path) -> None:
    out, _ = call("list")
    for words in ("fmnist-mini", "in the package", "no: gdpfed data get cifar10", "18,000", "non-commercial"):
        assert words in out
    assert "no: gdpfed data get fmnist " in out
    call("get", "fmnist")
    rows = {row["name"]: row for row in json.loads(call("list", "--json")[0])}
    assert rows["fmnist"]["place"] == "cache"
    assert rows["fmnist"]["folder"] == str(tmp_path / "cache" / "data" / "fmnist")
    assert rows["svhn"]["place"] is None
    assert rows["shakespeare"]["place"] == "package"


def test_get_downloads_once_and_tells(files: dict[str, bytes], tmp_path: Path) -> None:
    out, error = call("get", "fmnist")
    assert out.startswith("fmnist: content checked; cache: ")
    assert "train-images-idx3-ubyte.gz: 0.0 of 0.0 MB" in error
    out, error = call("get", "fmnist", "--json")
    assert error == ""
    assert [Path(path).name for path in json.loads(out)["files"]] == list(files)
    out, _ = call("get", "fmnist", "--data-dir", str(tmp_path / "own"), "--json")
    assert json.loads(out)["folder"] == str(tmp_path / "own" / "fmnist")
    assert call("get", "fmnist-mini")[0] == "fmnist-mini: content checked; in the package\n"


def test_get_draws_a_bar_on_a_terminal(
    files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(data.sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    data.get_set("fmnist")
    captured = capsys.readouterr()
    assert captured.out.startswith("fmnist: content checked")
    assert "━" in captured.err
    assert "train-images-idx3-ubyte.gz" in captured.err


def test_check_finds_damage(files: dict[str, bytes], tmp_path: Path) -> None:
    with pytest.raises(InputError, match="run 'gdpfed data get fmnist'"):
        call("check", "fmnist")
    call("get", "fmnist")
    assert json.loads(call("check", "fmnist", "--json")[0])[0]["state"] == "ok"
    name = "t10k-labels-idx1-ubyte.gz"
    content = bytearray(gzip.decompress(files[name]))
    content[-1] ^= 1
    (tmp_path / "cache" / "data" / "fmnist" / name).write_bytes(gzip.compress(bytes(content)))
    result = CliRunner().invoke(data.data_app, ["check"])
    assert isinstance(result.exception, InputError)
    assert name in str(result.exception)
    assert "SHA-256" in str(result.exception)
    assert [line.split()[1:4:2] for line in result.stdout.splitlines() if "mnist" in line] == [
        ["fmnist-mini", "ok"],
        ["fmnist", "damaged"],
    ]


def test_check_tells_of_files_that_are_not_official(files: dict[str, bytes], tmp_path: Path) -> None:
    for name in ("train_32x32.mat", "test_32x32.mat"):
        (tmp_path / name).write_bytes(b"rebuilt")
    out, _ = call("check", "svhn", "--data-dir", str(tmp_path))
    assert "not official" in out
    assert "expected 182,040,794 bytes, got 7" in out


def test_unknown_sets_are_an_input_error() -> None:
    for command in ("get", "check"):
        with pytest.raises(InputError, match="did you mean 'cifar10'"):
            call(command, "cifar")


def test_every_command_has_json_and_data_dir() -> None:
    commands = typer.main.get_command(data.data_app).commands  # type: ignore[attr-defined]
    assert sorted(commands) == ["check", "get", "list"]
    for command in commands.values():
        assert {"--json", "--data-dir"} <= {name for option in command.params for name in option.opts}
