"""Pages that the site's build writes: settings (from the fields of the classes), commands (from the program), and the
names of the library (for mkdocstrings, which reads signatures and docstrings).
"""

import dataclasses
import json
import os
import subprocess
import sys

from results_tables import markdown_table

import gdpfed
import gdpfed.flower
from gdpfed.cli import every_command
from gdpfed.cli.options import option_name
from gdpfed.config import text_of
from gdpfed.flower.server.deployment_settings import DeploymentSettings
from gdpfed.planning.plan import Group, Plan
from gdpfed.planning.settings import PlanSettings
from gdpfed.tasks.training_settings import TrainingSettings
from gdpfed_reproduce.experiments import EXPERIMENTS

__all__ = ["api_pages", "commands_page", "settings_page"]

_SETTINGS = {
    PlanSettings: "How to plan: `gdpfed.PlanSettings`, and the top of a task's file.",
    TrainingSettings: "What is trained, and how: `gdpfed.TrainingSettings`, and `[training]` in a task's file.",
    DeploymentSettings: "A deployment: `settings.toml` in the server's home, and options of `gdpfed flower init`.",
}
_VALUES = {Plan: "What a plan's file says: `gdpfed.Plan`.", Group: "What it says of each group: `gdpfed.Group`."}
# The library's pages: a title, and the folders that its names come from.
_SUBJECTS = {
    "planning": ("Planning", ("planning",)),
    "privacy": ("Privacy accounting", ("privacy",)),
    "training": ("Training", ("tasks", "training", "runs")),
    "ledger": ("Ledger", ("ledger",)),
    "audit": ("Audit", ("audit",)),
    "report": ("Report", ("report",)),
    "errors": ("Errors", ("errors",)),
}
# Public beside the names of `gdpfed`: what a deployment's app calls, and the protocol for other transports.
_OTHERS = {
    "flower": ("Deployment on Flower", [f"gdpfed.flower.{name}" for name in gdpfed.flower.__all__]),
    "secure": ("Secure sums", ["gdpfed.secure.client.SecureClient", "gdpfed.secure.server.SecureServer"]),
}
_HELP = """
import contextlib, io, json, sys
from gdpfed.cli import main
texts = []
for words in json.load(sys.stdin):
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.suppress(SystemExit):
        main([*words.split(), "--help"])
    texts.append(out.getvalue())
json.dump(texts, sys.stdout)
"""


def settings_page() -> str:
    """Every setting of a plan, a training and a deployment, and what is in a plan."""
    parts = [
        "# Settings\n\nMade from the fields of the classes; `help(gdpfed.PlanSettings)` shows the same. A setting is a "
        "key of a task's TOML file, an argument in Python, and an option of the commands that plan or train: "
        "`gdpfed plan`, `plan compare`, `train`, `compare`, `audit` and `flower plan`.\n"
    ]
    for cls, about in _SETTINGS.items():
        rows = [
            (
                f"`{field.name}`",
                "" if field.metadata["option"] is None else f"`{option_name(field)}`",
                "" if field.default in (None, ()) else f"`{field.default}`",
                text_of(field),
            )
            for field in dataclasses.fields(cls)
        ]
        parts.append(f"## {cls.__name__}\n\n{about}\n\n{markdown_table(('key', 'option', 'default', 'meaning'), rows)}")
    for value, about in _VALUES.items():
        meanings = [(f"`{field.name}`", text_of(field)) for field in dataclasses.fields(value)]
        parts.append(f"## {value.__name__}\n\n{about}\n\n{markdown_table(('key', 'meaning'), meanings)}")
    return "\n".join(parts)


def api_pages() -> dict[str, str]:
    """Every public name, by page; mkdocstrings fills them."""
    names = sorted(set(gdpfed.__all__) - {"__version__"}, key=str.lower)
    folder = {name: module.split(".")[1] for module, own in gdpfed._NAMES_OF.items() for name in own}
    pages = {
        subject: _api_page(title, [f"gdpfed.{name}" for name in names if folder[name] in folders])
        for subject, (title, folders) in _SUBJECTS.items()
    }
    return pages | {subject: _api_page(title, others) for subject, (title, others) in _OTHERS.items()}


def _api_page(title: str, names: list[str]) -> str:
    return "\n\n".join([f"# {title}", *(f"::: {name}" for name in names)]) + "\n"


def help_texts(commands: list[str]) -> list[str]:
    """What `gdpfed COMMAND --help` prints on a terminal of 100 columns without colours, for each."""
    plain = {**os.environ, "COLUMNS": "100", "TERM": "dumb", "NO_COLOR": "1"}
    for forcing in ("FORCE_COLOR", "GITHUB_ACTIONS", "PY_COLORS"):
        plain.pop(forcing, None)
    run = subprocess.run(  # noqa: S603 - our own command
        [sys.executable, "-c", _HELP],
        input=json.dumps(commands),
        capture_output=True,
        text=True,
        check=True,
        env=plain,
    )
    texts = [text.replace("Usage: -c", "Usage: gdpfed").strip() for text in json.loads(run.stdout)]
    return ["\n".join(line.rstrip() for line in text.splitlines()) for text in texts]


def commands_page() -> str:
    """The page of all commands."""
    alike = [name for name in EXPERIMENTS if name != "main"]
    left_out = {"plan of", *(f"reproduce {name}" for name in alike)}
    shown = ["", *(words for words, _ in every_command() if words not in left_out)]
    parts = [
        "# Commands\n\nEvery command has `--json`. An error is one line and exit code 2. What settings mean is also in "
        "[settings](settings.md). The options of `gdpfed reproduce main` are also those of "
        f"{', '.join(f'`{name}`' for name in alike)}.\n"
    ]
    parts += [
        f"## gdpfed {command}".rstrip() + f"\n\n```text\n{text}\n```\n"
        for command, text in zip(shown, help_texts(shown), strict=True)
    ]
    return "\n".join(parts)
