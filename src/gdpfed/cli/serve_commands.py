"""`gdpfed serve`: a page to look at."""

import sys
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from gdpfed.cli import options
from gdpfed.cli.show import tell
from gdpfed.errors import InputError

__all__ = ["serve"]


def serve(
    folder: Annotated[
        Path, Argument(help="Where runs and budgets files are, and where plans are saved. Default: this folder.")
    ] = Path(),
    ledger: Annotated[Path | None, Option(help="A ledger to show.")] = None,
    deployment: Annotated[Path | None, Option(metavar="HOME", help="A deployment to show: its server's home.")] = None,
    port: Annotated[int, Option(help="Of 127.0.0.1; 0 takes one that is free.")] = 8733,
    no_browser: Annotated[bool, Option("--no-browser", help="Only print the address.")] = False,
    as_json: options.Json = False,
) -> None:
    """Plans, runs, a ledger and a deployment, in a browser on this machine.

    Plan with sliders, and see what each choice costs; watch runs while they train; see what is
    left of the clients' budgets. Nobody else can connect: the address has a token in it. Nothing
    is changed, but for plans that you save in the folder. Interrupt it (^C) to end it.
    """
    options.need("starlette", extra="serve", purpose="gdpfed serve")
    options.need("uvicorn", extra="serve", purpose="gdpfed serve")
    if not folder.is_dir():
        raise InputError(f"expected a folder, got {str(folder)!r}, which is none: make it, or name another")
    if ledger is not None and not ledger.is_file():
        raise InputError(f"expected a ledger, got {str(ledger)!r}, which is not there: gdpfed ledger init makes one")
    from gdpfed.serve.app import Served
    from gdpfed.serve.server import serve as run

    served = Served(folder=folder, ledger=ledger, deployment=deployment)

    def told(address: str) -> None:
        tell(as_json, {"address": address}, address, "interrupt it (^C) to end it")
        # A program that started it waits for this line.
        sys.stdout.flush()

    run(served, port=port, opened=not no_browser, told=told)
