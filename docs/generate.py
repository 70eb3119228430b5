"""Writes the parts of the documentation that a program can know: `cli.md` (all help texts) and `results.md`.

python docs/generate.py            write
python docs/generate.py --check    exit code 1 if a file is not what would be written
"""

import os
import subprocess
import sys
from pathlib import Path

from gdpfed.results.without_training import noise_table, sampling_table

DOCS = Path(__file__).parent
COMMANDS = ["", "plan", "plan compare", "verify", "account", "reproduce", "reproduce sampling", "reproduce noise"]


def help_text(command: str) -> str:
    """What `gdpfed COMMAND --help` prints on a terminal of 100 columns without colours."""
    plain = {**os.environ, "COLUMNS": "100", "TERM": "dumb", "NO_COLOR": "1"}
    for forcing in ("FORCE_COLOR", "GITHUB_ACTIONS", "PY_COLORS"):
        plain.pop(forcing, None)
    run = subprocess.run(  # noqa: S603 - our own command
        [sys.executable, "-c", "from gdpfed.cli import main; main()", *command.split(), "--help"],
        capture_output=True,
        text=True,
        check=True,
        env=plain,
    )
    lines = [line.rstrip() for line in run.stdout.replace("Usage: -c", "Usage: gdpfed").strip().splitlines()]
    return "\n".join(lines)


def cli() -> str:
    """The page of all commands."""
    parts = ["# Commands\n\nEvery command that prints a result has `--json`. An error is one line and exit code 2.\n"]
    parts += [f"## gdpfed {command}".rstrip() + f"\n\n```text\n{help_text(command)}\n```\n" for command in COMMANDS]
    return "\n".join(parts)


def _row(*cells: str) -> str:
    return "| " + " | ".join(cells) + " |\n"


def _joined(values: tuple[float, ...], digits: int) -> str:
    return " ".join(f"{value:.{digits}f}" for value in values)


def results() -> str:
    """The paper's tables that need no training, beside ours."""
    text = (
        "# Results\n\nWritten by `docs/generate.py`; no number is typed in. Tables that need training are to come.\n\n"
        "## Optimal sampling ratios (paper, Table I)\n\nIn percent, strictest group first: `gdpfed reproduce sampling`."
        " Ours is the closed form; a numeric minimisation of the paper's Problem 1, phi* included, agrees to 1e-4. "
        "*Objective* is how much larger Problem 1 is at the paper's ratios than at ours, relatively: it is so flat "
        "that the paper's solver stopped early.\n\n"
    )
    head = ("data set", "epsilons", "q", "paper", "ours", "numeric", "difference", "objective")
    text += _row(*head) + _row(*["---"] * len(head))
    for ratio in sampling_table():
        text += _row(
            ratio.dataset,
            " ".join(f"{epsilon:g}" for epsilon in ratio.epsilons),
            f"{ratio.participation:g}",
            _joined(ratio.paper, 2),
            _joined(ratio.closed_form, 2),
            _joined(ratio.numeric, 2),
            " ".join(f"{difference:+.2f}" for difference in ratio.difference),
            f"{ratio.objective_gap:+.0e}",
        )
    text += (
        "\n![Optimal ratios against the strictest group's epsilon](img/sampling.png)\n\n"
        "## Noise (paper, noise table)\n\nSquared noise multipliers and the paper's Lambda, at the rates that the "
        "paper prints: `gdpfed reproduce noise`. The paper used RDP and rounds to 0.01. Lambda mixes two scales: a "
        "plain mean for gdpfed, a mean weighted by r^2 and k/d for the last two. *At equal step* is one scale for all "
        "methods ([method](method.md)); by it gdpfed adds more noise than dp-fedavg.\n\n"
    )
    head = ("data set", "method", "accountant", "paper", "ours", "differs", "paper Lambda", "ours", "differs")
    text += _row(*head, "at equal step") + _row(*["---"] * (len(head) + 1))
    for noise in noise_table():
        difference, magnitude = noise.largest_difference, noise.magnitude_difference
        text += _row(
            noise.dataset,
            noise.method,
            noise.accountant,
            "not printed" if noise.paper_variances is None else _joined(noise.paper_variances, 2),
            _joined(noise.noise_variances, 3),
            "" if difference is None else f"{100 * difference:+.1f} %",
            "not printed" if noise.paper_magnitude is None else f"{noise.paper_magnitude:.2f}",
            f"{noise.magnitude:.3f}",
            "" if magnitude is None else f"{100 * magnitude:+.1f} %",
            f"{noise.at_equal_step:.3f}",
        )
    return text


def main() -> int:
    """Writes, or checks, every page."""
    stale = []
    for name, content in (("cli.md", cli()), ("results.md", results())):
        path = DOCS / name
        if "--check" in sys.argv:
            if not path.is_file() or path.read_text(encoding="utf-8") != content:
                stale.append(name)
        else:
            path.write_text(content, encoding="utf-8")
    if stale:
        sys.stderr.write(f"not what would be written: {', '.join(stale)}; run: make docs\n")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
