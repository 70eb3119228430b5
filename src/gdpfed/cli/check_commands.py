"""`gdpfed check`: is what earlier versions left still sound?"""

import os
from pathlib import Path
from typing import Annotated

import typer

from gdpfed.cli import options
from gdpfed.cli.show import console, print_json

__all__ = ["check"]

_BROKEN = 2


def _harmless(text: str) -> str:
    """For a terminal: names of files and what stands in them are not ours."""
    return "".join(letter if letter.isprintable() else "?" for letter in os.fsencode(text).decode("utf-8", "replace"))


def check(
    paths: Annotated[
        list[Path], typer.Argument(metavar="PATH...", help="Folders, looked through to the bottom, and files.")
    ],
    as_json: options.Json = False,
) -> None:
    """After an upgrade: find ledgers, plans, runs and homes, and say which are not sound, and what to do.

    Changes nothing, and follows no links. Exit code 0: all sound; 2: a promise is broken, or something is damaged.
    """
    from gdpfed.runs.check import check_paths

    found = list(check_paths(paths))
    num_broken = sum(not one.is_sound for one in found)
    if as_json:
        print_json({"sound": not num_broken, "findings": [one.mapping() for one in found]})
    else:
        out = console()
        for one in found:
            told = "sound" if one.is_sound else "NOT SOUND"
            out.print(f"{_harmless(str(one.path))} ({one.kind}): {told}", soft_wrap=True)
            for kind, texts in (("problem", one.problems), ("note", one.notes)):
                for text in texts:
                    out.print(f"  {kind}: {_harmless(' '.join(text.split()))}", soft_wrap=True)
        if not found:
            out.print("no ledgers, plans, runs or homes there", soft_wrap=True)
        else:
            out.print(f"{len(found)} checked, {num_broken} not sound", soft_wrap=True)
    if num_broken:
        raise typer.Exit(_BROKEN)
