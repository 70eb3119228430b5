"""The options that several commands share, each declared once, and how they become settings."""

import csv
import dataclasses
import json
from pathlib import Path
from typing import Annotated, Any

import typer

from gdpfed.errors import InputError
from gdpfed.planning.methods import METHODS
from gdpfed.planning.settings import PlanSettings

__all__ = [
    "Accountant",
    "Averaging",
    "ClientsPerPerson",
    "ClipNorm",
    "Delta",
    "FairnessFloor",
    "Groups",
    "Json",
    "Keep",
    "Linked",
    "MaxParticipations",
    "Method",
    "MinGroupSize",
    "NoiseMultipliers",
    "Participation",
    "Rates",
    "Release",
    "Rounds",
    "ServerLearningRate",
    "Weights",
    "applied",
    "numbers",
    "stated",
]

Method = Annotated[str | None, typer.Option("--method", help=f"One of {', '.join(METHODS)}. Default: gdpfed+.")]
Rounds = Annotated[int | None, typer.Option("--rounds", help="Rounds of training.")]
Participation = Annotated[
    float | None,
    typer.Option("--participation", help="Mean fraction of all clients in a round, above 0 and at most 1."),
]
ClipNorm = Annotated[float | None, typer.Option("--clip-norm", help="L2 bound on one client's update.")]
Delta = Annotated[
    float | None,
    typer.Option("--delta", help="Failure probability for clients that state none. Default: clients ** -1.1."),
]
Accountant = Annotated[
    str | None, typer.Option("--accountant", help="'pld' (tightest, the default) or 'rdp' (the paper's).")
]
Groups = Annotated[
    str | None,
    typer.Option(
        "--groups",
        help="'distinct' (one for each budget), a number (at most so many, chosen optimally), a list of lowest "
        "epsilons (0.5,1.5,3), or 'given' (the file's column group). Default: distinct up to 8 budgets, chosen beyond.",
    ),
]
MinGroupSize = Annotated[
    int | None, typer.Option("--min-group-size", help="Smallest group; smaller ones join the stricter neighbour.")
]
Rates = Annotated[
    str | None,
    typer.Option(
        "--rates", help="'uniform', 'paper', 'snr', 'sample', or a list, strictest group first (0.006,0.018,0.035)."
    ),
]
FairnessFloor = Annotated[
    float | None,
    typer.Option("--fairness-floor", help="With rates 'snr': no group below this fraction of the uniform rate."),
]
NoiseMultipliers = Annotated[
    str | None,
    typer.Option("--noise-multipliers", help="Use these instead of calibrating; refused if a budget is exceeded."),
]
Keep = Annotated[
    str | None,
    typer.Option("--keep", help="Fraction kept by Top-k: 'none', 'paper', 'closed-form', or a list (0.7,0.8,0.9)."),
]
Weights = Annotated[str | None, typer.Option("--weights", help="'paper' or 'inverse-variance'.")]
Release = Annotated[str | None, typer.Option("--release", help="'per-group' or 'pooled' (one sum, one noise draw).")]
ServerLearningRate = Annotated[
    float | None, typer.Option("--server-learning-rate", help="Factor on the update. Default: 1.")
]
Averaging = Annotated[
    float | None,
    typer.Option("--averaging", help="Keep a moving average of the models that forgets at this rate. Default: 0, off."),
]
MaxParticipations = Annotated[
    int | None, typer.Option("--max-participations", help="A client that took part so often is not sampled again.")
]
ClientsPerPerson = Annotated[
    int | None, typer.Option("--clients-per-person", help="One person's records may sit in so many clients.")
]
Linked = Annotated[
    Path | None,
    typer.Option("--linked", help="File with the clients of one person on each line (a,b,c), or a JSON list of lists."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def numbers(text: str, *, option: str) -> tuple[float, ...]:
    """Reads ``0.1,0.2``."""
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise InputError(f"expected numbers separated by commas, got {option} {text!r}") from None


def _word_or_numbers(text: str | None, *, option: str) -> Any:
    """A list of numbers where there is one; a word is left to the settings, which know the words."""
    if text is None:
        return None
    if any(character.isdigit() for character in text):
        return numbers(text, option=option)
    return text


def _groups(text: str | None) -> Any:
    if text is not None and text.strip().isdecimal():
        return int(text)
    return _word_or_numbers(text, option="--groups")


def _linked(path: Path | None) -> tuple[tuple[str, ...], ...] | None:
    if path is None:
        return None
    if not path.is_file():
        raise InputError(f"expected a file of linked clients, got {str(path)!r}, which is not there: check the path")
    try:
        text = path.read_text(encoding="utf-8-sig")
        rows = (
            json.loads(text)
            if path.suffix.lower() == ".json"
            else [row for row in csv.reader(text.splitlines()) if row]
        )
    except (ValueError, RecursionError, csv.Error):
        raise InputError(f"expected lines of client names, or a JSON list of lists, in {str(path)!r}") from None
    if not (isinstance(rows, list) and rows and all(isinstance(row, list) and row for row in rows)):
        raise InputError(f"expected at least one line of client names in {str(path)!r}")
    return tuple(tuple(str(client).strip() for client in row) for row in rows)


def stated(settings: PlanSettings, changes: dict[str, Any]) -> PlanSettings:
    """The settings with every change that is not None."""
    return dataclasses.replace(settings, **{name: value for name, value in changes.items() if value is not None})


def applied(settings: PlanSettings, options: dict[str, Any]) -> PlanSettings:
    """The settings with every stated option in place of theirs; ``options`` is by the settings' names."""
    noise = options.pop("noise_multipliers")
    changes = {
        **options,
        "groups": _groups(options.pop("groups")),
        "rates": _word_or_numbers(options.pop("rates"), option="--rates"),
        "keep": _word_or_numbers(options.pop("keep"), option="--keep"),
        "linked": _linked(options.pop("linked")),
        "noise_multipliers": numbers(noise, option="--noise-multipliers") if noise is not None else None,
    }
    return stated(settings, changes)
