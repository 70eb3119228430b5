"""`python -m gdpfed`, and what the command `gdpfed` starts: nothing heavy is imported before an interrupt is caught.

Place: before the command line. While it is imported an interrupt ends the process at once: raised inside of a package's
import, it may come out as an error of that package.
"""

import os
import signal
import sys
from typing import NoReturn

__all__ = ["main"]


def main() -> None:
    """Runs the command line and exits."""
    # Who started us may have chosen otherwise: nohup, a shell's background.
    is_usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_usual:
        signal.signal(signal.SIGINT, _end)
    from gdpfed.cli import main as run

    if is_usual:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run()


def _end(*_: object) -> NoReturn:
    sys.stderr.write("interrupted: nothing was started\n")
    sys.stderr.flush()
    os._exit(130)


if __name__ == "__main__":
    main()
