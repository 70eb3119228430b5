"""`gdpfed check`: is what earlier versions left still sound?"""

import os
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument

from gdpfed.cli import options
from gdpfed.cli.show import print_json, say

__all__ = ["check"]

_BROKEN = 2


def _harmless(text: str) -> str:
    """For a terminal: names of files and what stands in them are not ours."""
    return "".join(letter if letter.isprintable() else "?" for letter in os.fsencode(text).decode("utf-8", "replace"))


def check(
    paths: Annotated[list[Path], Argument(metavar="PATH...", help="Folders, looked through to the bottom, and files.")],
    as_json: options.Json = False,
) -> None:
    """After an upgrade: are ledgers, plans, runs and homes still sound?

    Says which are not, and what to do. Changes nothing, and follows no links. Exit code 0: all sound; 2: a promise is
    broken, or something is damaged.
    """
    from gdpfed.runs.check import check_paths

    findings = list(check_paths(paths))
    num_broken = sum(not finding.is_sound for finding in findings)
    if as_json:
        print_json({"sound": not num_broken, "findings": [finding.mapping() for finding in findings]})
    else:
        for finding in findings:
            say(f"{_harmless(str(finding.path))} ({finding.kind}): {'sound' if finding.is_sound else 'NOT SOUND'}")
            for kind, texts in (("problem", finding.problems), ("note", finding.notes)):
                say(*(f"  {kind}: {_harmless(' '.join(text.split()))}" for text in texts))
        if findings:
            say(f"{len(findings)} checked, {num_broken} not sound")
        else:
            say("no ledgers, plans, runs or homes there")
    if num_broken:
        raise typer.Exit(_BROKEN)
