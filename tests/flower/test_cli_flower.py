"""`gdpfed flower` for real machines: from an empty folder to a pinned enrolment and a plan; every refusal in words."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gdpfed.cli import main


def call(capsys: pytest.CaptureFixture[str], *words: object, code: int = 0) -> str:
    with pytest.raises(SystemExit) as ended:
        main(["flower", *(str(word) for word in words)])
    captured = capsys.readouterr()
    assert ended.value.code == code, captured
    return captured.out if code == 0 else captured.err


@pytest.mark.training
def test_from_nothing_to_a_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    server = tmp_path / "server"
    printed = call(capsys, "init", server, "--host", "fed.example.org", "--dropout", 0.2)
    assert "flower-superlink --host 127.0.0.1" in printed
    assert "gdpfed flower gate" in printed
    for number in range(1, 7):
        printed = call(capsys, "node", tmp_path / f"n{number}", "--epsilon", 2 * number, "--delta", "1e-3")
    assert "gdpfed-supernode" in printed
    announcements = sorted(tmp_path.glob("n*/announcement.json"))
    made = json.loads(call(capsys, "enrol", server, *announcements, "--json"))
    assert made["clients"] == 6
    printed = call(capsys, "plan", server, "--rounds", 3, "--participation", 0.5, "--accountant", "rdp")
    assert "flwr run" in printed
    call(capsys, "pin", tmp_path / "n1", server / "enrolment.json", "--hash", made["hash"])
    assert (tmp_path / "n1" / "enrolment.json").is_file()
    assert "is given up" in call(capsys, "give-up", server)
    assert "set a plan first" in call(capsys, "give-up", server, code=2)
    assert "holds for 36" in call(capsys, "certificate", server)
    before = (server / "certificates" / "server.crt").read_bytes()
    call(capsys, "certificate", server, "--host", "other.example.org")
    assert (server / "certificates" / "server.crt.old").read_bytes() == before


def test_refusals_say_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    server, node = tmp_path / "server", tmp_path / "node"
    call(capsys, "init", server, "--host", "127.0.0.1")
    assert "choose another folder" in call(capsys, "init", server, "--host", "127.0.0.1", code=2)
    call(capsys, "node", node, "--epsilon", 1, "--delta", "1e-5")
    assert "choose another" in call(capsys, "node", node, "--epsilon", 2, "--delta", "1e-5", code=2)
    assert "epsilon" in call(capsys, "node", tmp_path / "x", "--epsilon", -1, "--delta", "1e-5", code=2)
    assert "enrol" in call(capsys, "plan", server, "--rounds", 2, code=2)
    call(capsys, "enrol", server, node / "announcement.json")
    listed = server / "enrolment.json"
    assert "do not pin it" in call(capsys, "pin", node, listed, "--hash", "00", code=2)
    assert not (node / "enrolment.json").exists()
    assert "not there" in call(capsys, "pin", node, tmp_path / "nothing.json", code=2)
    changed = json.loads((node / "announcement.json").read_text())
    changed["epsilon"] = 5.0
    (tmp_path / "changed.json").write_text(json.dumps(changed))
    assert "not signed" in call(capsys, "enrol", server, tmp_path / "changed.json", code=2)
    assert "either --file or" in call(capsys, "plan", server, "--file", "p.toml", "--rounds", 2, code=2)
    assert "gdpfed flower init" in call(capsys, "certificate", node, code=2)
    assert "at least a node for each" in call(capsys, "up", "--nodes", 2, "--dir", tmp_path / "up", code=2)
    assert "gdpfed flower new" in call(capsys, "up", "--app", node, "--dir", tmp_path / "up", code=2)
    assert not (tmp_path / "up" / "server").exists()


def test_json_of_every_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    server, node = tmp_path / "server", tmp_path / "node"

    def told(*words: object) -> dict[str, object]:
        return json.loads(call(capsys, *words, "--json"))  # type: ignore[no-any-return]

    content = told("init", server, "--host", "127.0.0.1", "--max-attempts", 3)
    assert content["authority"] == str(server / "certificates" / "ca.crt")
    assert "max_attempts = 3" in (server / "settings.toml").read_text()
    assert told("node", node, "--epsilon", 4, "--delta", "1e-3")["announcement"] == str(node / "announcement.json")
    digest = told("enrol", server, node / "announcement.json")["hash"]
    assert told("pin", node, server / "enrolment.json")["hash"] == digest
    run = told("plan", server, "--rounds", 2, "--participation", 0.5, "--accountant", "rdp", "--method", "gdpfed")
    assert run["num_rounds"] == 2
    assert told("give-up", server)["run"] == run["run"]
    assert list(told("certificate", server)["days_left"]) == [  # type: ignore[call-overload]
        str(server / "certificates" / name) for name in ("server.crt", "ca.crt")
    ]
    assert len(told("new", tmp_path / "project")["files"]) == 6  # type: ignore[arg-type]


def test_new_writes_a_project(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    printed = call(capsys, "new", tmp_path / "my-federation")
    assert printed.count("wrote ") == 6
    assert "empty folder" in call(capsys, "new", tmp_path / "my-federation", code=2)


def test_client_side_imports_are_light() -> None:
    """A node starts a process for each message."""
    pytest.importorskip("flwr")
    seen = "import sys, gdpfed.flower.apps; print(*{'torch', 'scipy', 'dp_accounting'} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", seen], capture_output=True, text=True, check=True, env=dict(os.environ)
    )
    assert done.stdout.split() == []
