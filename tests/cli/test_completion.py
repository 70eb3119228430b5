"""Completion by the shell: `gdpfed --install-completion`, and what it offers then."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

GDPFED = Path(sys.executable).with_name("gdpfed")
pytestmark = [pytest.mark.processes, pytest.mark.skipif(not GDPFED.is_file(), reason="gdpfed is not installed")]


def bash(script: str, home: Path) -> str:
    environment = {**os.environ, "HOME": str(home), "PATH": f"{GDPFED.parent}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, env=environment, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_real_bash_completes(tmp_path: Path) -> None:
    """Installed once, a new shell completes commands, options, and the command that one may leave out."""
    told = bash("gdpfed --install-completion; true", tmp_path)
    assert "bash completion installed" in told
    lines = ["gdpfed pl", "gdpfed ledger st", "gdpfed plan --roun", "gdpfed plan comp", "gdpfed train --metr"]
    completed = "".join(
        f"COMP_WORDS=({line}); COMP_CWORD={len(line.split()) - 1}; _gdpfed_completion gdpfed; echo ${{COMPREPLY[@]}}\n"
        for line in lines
    )
    out = bash(f"source ~/.bashrc\n{completed}", tmp_path)
    assert out.splitlines() == ["plan plot", "status", "--rounds", "compare", "--metrics"]


@pytest.mark.parametrize(
    ("shell", "asked"),
    [
        ("zsh", {"_TYPER_COMPLETE_ARGS": "gdpfed ledger st"}),
        ("fish", {"_TYPER_COMPLETE_ARGS": "gdpfed ledger st", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}),
    ],
)
def test_other_shells_are_answered(shell: str, asked: dict[str, str]) -> None:
    """By the protocol that the scripts for these shells speak."""
    environment = {**os.environ, **asked, "_GDPFED_COMPLETE": f"complete_{shell}"}
    done = subprocess.run([str(GDPFED)], capture_output=True, text=True, env=environment, timeout=60)
    assert "status" in done.stdout
    script = {**os.environ, "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    shown = subprocess.run([str(GDPFED), "--show-completion", shell], capture_output=True, text=True, env=script)
    assert f"_GDPFED_COMPLETE=complete_{shell}" in shown.stdout
