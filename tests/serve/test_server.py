"""The command itself."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from gdpfed.errors import InputError
from gdpfed.serve.server import bound
from tests.cli.test_cli import call


@pytest.mark.processes
def test_it_starts_shows_and_ends(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "gdpfed", "serve", str(tmp_path), "--no-browser", "--port", "0", "--json"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert server.stdout is not None
    try:
        text = ""
        while "}" not in text:
            text += server.stdout.readline()
        address = json.loads(text)["address"]
        assert address.startswith("http://127.0.0.1:")
        with httpx.Client(follow_redirects=True, timeout=60) as client:
            assert "Plans to begin with" in client.get(address).text
            assert client.get(address.partition("?")[0] + "runs").status_code == 200
        assert httpx.get(address.partition("?")[0]).status_code == 403
    finally:
        server.send_signal(signal.SIGINT)
        _, errors = server.communicate(timeout=60)
    assert server.returncode == 0
    assert errors == ""


def test_what_cannot_be_served_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with bound(0) as taken:
        port = taken.getsockname()[1]
        code, _, err = call(capsys, "serve", str(tmp_path), "--no-browser", "--port", str(port))
        assert code == 2
        assert f"127.0.0.1:{port}" in err
    for arguments, words in (
        ([str(tmp_path / "nothing")], "expected a folder"),
        ([str(tmp_path), "--ledger", str(tmp_path / "nothing")], "expected a ledger"),
        ([str(tmp_path), "--deployment", str(tmp_path)], "server's or a node's home"),
    ):
        code, _, err = call(capsys, "serve", *arguments, "--no-browser", "--port", "0")
        assert code == 2
        assert words in err
    with pytest.raises(InputError, match="from 0 to 65535"):
        bound(70000)
