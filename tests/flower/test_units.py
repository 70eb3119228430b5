"""systemd units and container files as `gdpfed flower init` and `node` write them."""

import json
import shutil
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

import pytest
import yaml

from gdpfed.cli import main
from gdpfed.flower.operate.units import write_units

pytest.importorskip("flwr")


def call(capsys: pytest.CaptureFixture[str], *words: object) -> dict[str, Any]:
    with pytest.raises(SystemExit) as ended:
        main(["flower", *map(str, words), "--json"])
    assert ended.value.code == 0, capsys.readouterr().err
    return json.loads(capsys.readouterr().out)


@pytest.fixture
def scripts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where programs are said to be; systemd looks whether they are there."""
    folder = tmp_path / "scripts"
    folder.mkdir()
    for name in ("gdpfed", "gdpfed-supernode", "flower-superlink"):
        (folder / name).write_text("#!/bin/sh\n")
        (folder / name).chmod(0o755)
    found = sysconfig.get_path
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(folder) if name == "scripts" else found(name))
    return folder


@pytest.mark.processes
def test_units_are_valid(tmp_path: Path, scripts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By systemd's own word, with spaces and signs in the paths; what is wrong is found."""
    server, node = tmp_path / "my 100% server", tmp_path / "node $1"
    written = call(capsys, "init", server, "--host", "127.0.0.1", "--systemd")["files"]
    written += call(capsys, "node", node, "--epsilon", 3, "--delta", 1e-5, "--superlink", "a:1", "--systemd")["files"]
    assert [Path(file).name for file in written] == [
        "gdpfed-superlink.service", "gdpfed-gate.service", "gdpfed-metrics.service", "gdpfed-node-node-1.service",
        "gdpfed-metrics-node-1.service",
    ]  # fmt: skip
    texts = [Path(file).read_text() for file in written]
    assert all(f"ExecStart={scripts}/" in text for text in texts)
    assert ["IPAddressDeny=any" in text for text in texts] == [True, False, False, False, False]
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed (Debian: systemd)")
    verify = ["systemd-analyze", "verify", "--man=no", "--recursive-errors=one"]
    done = subprocess.run([*verify, *written], capture_output=True, text=True)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    broken = Path(written[0])
    broken.write_text(texts[0].replace("ExecStart=", "ExecStart=/nowhere").replace("UMask=0077", "UMask=private"))
    said = subprocess.run([*verify, str(broken)], capture_output=True, text=True).stderr
    assert "not executable" in said
    assert "private" in said


def test_units_run_what_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = call(capsys, "node", tmp_path / "node", "--epsilon", 3, "--delta", 1e-5, "--superlink", "a:1", "--systemd")
    unit = Path(made["files"][0]).read_text()
    (line,) = [line for line in unit.splitlines() if line.startswith("ExecStart=")]
    printed = made["commands"][0]
    assert line.split()[1:6] == printed.split()[1:6]
    assert "gdpfed-home=" in line
    # Once more is not over what is there: a home is never written over, and files beside it may be made again.
    assert write_units(tmp_path / "node", {"node-node": ["gdpfed-supernode", "--superlink", "b:1"]})[0].is_file()


def test_compose_files_are_valid(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As YAML, and in what they say: who may reach what, as whom, and what is writable."""
    made = call(capsys, "init", tmp_path / "server", "--host", "127.0.0.1", "--container")
    folder = tmp_path / "server" / "container"
    assert {Path(file).name for file in made["files"]} == {"Containerfile", "requirements.txt", "compose.yaml"}
    composed = yaml.safe_load((folder / "compose.yaml").read_text())["services"]
    assert list(composed) == ["superlink", "gate"]
    assert composed["superlink"]["ports"] == ["9092:9092"]
    assert "9093" not in str([service.get("ports") for service in composed.values()])
    assert composed["gate"]["network_mode"] == "service:superlink"
    for service in composed.values():
        assert service["read_only"]
        assert service["cap_drop"] == ["ALL"]
        assert service["volumes"] == [f"{tmp_path}/server:/home/gdpfed/home"]
        assert str(tmp_path) not in " ".join(service["command"])
        assert service["environment"]["FLWR_TELEMETRY_ENABLED"] == "0"
        assert service["user"].count(":") == 1
    assert composed["superlink"]["command"][:3] == ["flower-superlink", "--host", "127.0.0.1"]
    node = call(capsys, "node", tmp_path / "a", "--epsilon", 3, "--delta", 1e-5, "--superlink", "a:1", "--container")
    composed = yaml.safe_load(Path(node["files"][2]).read_text())["services"]
    assert list(composed) == ["node"]
    assert 'gdpfed-home="/home/gdpfed/home"' in composed["node"]["command"][-1]
    words = [line.split()[0] for line in (folder / "Containerfile").read_text().splitlines() if line[:1].isalpha()]
    assert words == ["ARG", "FROM", "COPY", "RUN", "RUN", "WORKDIR"]
    assert (folder / "requirements.txt").read_text().startswith("gdpfed[flower]==")
