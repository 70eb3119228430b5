"""Files that only their owner can read.

Place: under everything of the ledger that reaches the disk. What a ledger holds (who took part, how often) must stay as
secret as the samples are, so no file of it is readable by others for even a moment.

Guarantees (tests of the same name):
  nobody_else_reads_it    mode 0600 from the first byte, also where a file with a wider mode, or a link, stood before.
  whole_or_not_at_all     on failure what was there before stays, and nothing new is left.
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from gdpfed.errors import InputError

__all__ = ["private_file", "private_opener"]


def private_opener(path: str, flags: int) -> int:
    """For files that hold who took part: nobody else may read them."""
    return os.open(path, flags, 0o600)


@contextlib.contextmanager
def private_file(path: Path) -> Iterator[IO[bytes]]:
    """A file to write, which takes its place, durably, when the block ends without an error."""
    if path.exists() and not path.is_file():
        raise InputError(f"expected the name of a file to write, got {str(path)!r}, which is none: choose another")
    part = path.with_name(path.name + ".part")
    try:
        # Not opened as it is: one that was left or put there keeps its mode, and may lead elsewhere.
        part.unlink(missing_ok=True)
        with open(part, "xb", opener=private_opener) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise InputError(f"cannot write {str(path)!r}: {error.strerror or error}; nothing was changed") from None
        raise
