"""`python -m gdpfed`, and what the command `gdpfed` starts: nothing heavy is imported before an interrupt is caught.

Place: before the command line.
"""

import sys

__all__ = ["main"]


def main() -> None:
    """Runs the command line and exits."""
    try:
        from gdpfed.cli import main as run
    except KeyboardInterrupt:
        sys.stderr.write("interrupted: nothing was started\n")
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
