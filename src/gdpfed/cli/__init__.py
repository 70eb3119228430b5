"""The command line: each command is a few lines over a public function, and every error is one line and exit code 2.

Place: the outermost layer. A command is imported when it is called for: `gdpfed --help` needs only `COMMANDS`.
"""

import importlib
import importlib.util
import io
import os
import sys
from collections.abc import Iterator
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from gdpfed import __version__
from gdpfed.errors import GdpfedError, InputError, unusable

__all__ = ["COMMANDS", "app", "every_command", "main"]

_INTERRUPTED = 130

# Where each command is, and the first line of its help.
COMMANDS = {
    "plan": (".plan_commands:plan_app", "Plan the privacy of a federated training."),
    "train": (".train_commands:train_run", "Train a task within its clients' budgets, as a simulation."),
    "compare": (".train_commands:compare_runs", "Train several methods on several seeds, and show them side by side."),
    "resume": (".train_commands:resume_run", "Go on with a run that was interrupted."),
    "show": (".train_commands:show_runs", "A table of runs, and their curves as a picture."),
    "report": (".report_commands:report_runs", "One self-contained page about runs, or about a plan."),
    "serve": (".serve_commands:serve", "Plans, runs, a ledger and a deployment, in a browser on this machine."),
    "plot": (".report_commands:plot_runs", "Figures of runs for a paper."),
    "data": (".data_commands:data_app", "Data sets: what is here, fetch, check."),
    "ledger": (".ledger_commands:ledger_app", "A privacy ledger: budgets and spend of clients over all runs."),
    "verify": (".account_commands:verify", "Recompute every epsilon of a plan from its mechanism."),
    "check": (".account_commands:check", "After an upgrade: are ledgers, plans, runs and homes still sound?"),
    "account": (".account_commands:account_command", "What a mechanism costs, or what a budget allows."),
    "audit": (".audit_commands:audit", "Try to break a plan's promises, with canary clients on the real path."),
    "flower": (".flower_commands:flower_app", "A federation of machines that do not trust each other, over Flower."),
    # A package of the repository: a clone has it, an installed wheel does not.
    "reproduce": ("gdpfed_reproduce.commands:reproduce_app", "The paper's tables and figures beside ours."),
}


def _is_here(name: str) -> bool:
    return name != "reproduce" or importlib.util.find_spec("gdpfed_reproduce") is not None


def _load(name: str) -> Any:
    """The command itself, with its options."""
    if not _is_here(name):
        raise InputError(
            "the paper's experiments are in gdpfed's repository, not in the installed package: clone the repository, "
            "and there pip install -e '.[torch,plots]'"
        )
    module, _, attribute = COMMANDS[name][0].partition(":")
    loaded = getattr(importlib.import_module(module, __name__), attribute)
    if not isinstance(loaded, typer.Typer):
        single = typer.Typer(add_completion=False)
        single.command(name)(loaded)
        loaded = single
    command = typer.main.get_command(loaded)
    command.name = name
    return command


class _LazyGroup(TyperGroup):
    """Lists names and helps; imports a command when it is called for."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = {
            name: TyperCommand(name=name, help=line, hidden=not _is_here(name)) for name, (_, line) in COMMANDS.items()
        }

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, listed, rest = super().resolve_command(ctx, args)
        return name, None if listed is None or name is None else _load(name), rest


app = typer.Typer(
    name="gdpfed",
    cls=_LazyGroup,
    help="Federated learning for clients who ask for different amounts of privacy.",
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"gdpfed {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    del version
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def every_command() -> Iterator[tuple[str, Any]]:
    """The words of every command and group, and the command itself: for the documentation, and for tests."""
    for name in COMMANDS:
        if _is_here(name):
            command = _load(name)
            yield name, command
            yield from ((f"{name} {word}", inner) for word, inner in getattr(command, "commands", {}).items())


def _fail(message: str) -> int:
    # Names of files and what stands in them are not ours: a terminal must not obey them.
    line = "".join(letter if letter.isprintable() else "?" for letter in " ".join(str(message).split()))
    sys.stderr.write(f"error: {line}\n")
    return 2


def main(arguments: list[str] | None = None) -> None:
    """Runs the command line and exits: 0 done, 2 an error that the message explains, 130 interrupted."""
    sys.exit(_run(sys.argv[1:] if arguments is None else arguments))


def _run(arguments: list[str]) -> int:
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Names of files need not be text.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        code: Any = app(arguments, standalone_mode=False)
        sys.stdout.flush()
        if code == _INTERRUPTED:
            raise KeyboardInterrupt
        return code if isinstance(code, int) else 0
    except GdpfedError as error:
        return _fail(str(error))
    except (KeyboardInterrupt, typer.Abort):
        sys.stderr.write("interrupted: a run goes on with gdpfed resume\n")
        return _INTERRUPTED
    except BrokenPipeError:
        # The reader (head, less) has left; standard output must not be flushed again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        return _fail(str(unusable(error)))
    except Exception as error:
        # What the option parser raises has a message for the user; anything else is a defect, and keeps its traceback.
        explain = getattr(error, "format_message", None)
        if explain is None:
            raise
        return _fail(explain())
