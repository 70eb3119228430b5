"""The command line: each command is a few lines over a public function, and every error is one line and exit code 2.

Place: the outermost layer. Commands are imported when they are called for, so that `gdpfed --help` needs neither torch
nor flwr.
"""

import importlib.util
import os
import sys
from typing import Annotated, Any

import typer

from gdpfed import __version__
from gdpfed.cli.account_commands import account
from gdpfed.cli.audit_commands import audit
from gdpfed.cli.check_commands import check
from gdpfed.cli.data_commands import data_app
from gdpfed.cli.flower_commands import flower_app
from gdpfed.cli.ledger_commands import ledger_app
from gdpfed.cli.plan_commands import plan_app, verify
from gdpfed.cli.report_commands import plot_runs, report_runs
from gdpfed.cli.train_commands import compare_runs, resume_run, show_runs, train_run
from gdpfed.errors import GdpfedError

__all__ = ["app", "main"]

_INTERRUPTED = 130

app = typer.Typer(
    name="gdpfed",
    help="Federated learning for clients who ask for different amounts of privacy.",
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(plan_app, name="plan")
app.command("train")(train_run)
app.command("compare")(compare_runs)
app.command("resume")(resume_run)
app.command("show")(show_runs)
app.command("report")(report_runs)
app.command("plot")(plot_runs)
app.add_typer(data_app, name="data")
app.add_typer(ledger_app, name="ledger")
app.command()(verify)
app.command()(check)
app.command()(account)
app.command()(audit)
app.add_typer(flower_app, name="flower")
if importlib.util.find_spec("gdpfed_reproduce") is not None:
    # The paper's experiments are a package of the repository: a clone has it, an installed wheel does not.
    app.add_typer(importlib.import_module("gdpfed_reproduce.commands").reproduce_app, name="reproduce")


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


def _fail(message: str) -> int:
    sys.stderr.write("error: " + " ".join(str(message).split()) + "\n")
    return 2


def main(arguments: list[str] | None = None) -> None:
    """Runs the command line and exits: 0 done, 2 an error that the message explains, 130 interrupted."""
    sys.exit(_run(sys.argv[1:] if arguments is None else arguments))


def _run(arguments: list[str]) -> int:
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
    except Exception as error:
        # What the option parser raises has a message for the user; anything else is a defect, and keeps its traceback.
        explain = getattr(error, "format_message", None)
        if explain is None:
            raise
        return _fail(explain())
