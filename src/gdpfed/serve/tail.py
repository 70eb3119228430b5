"""Lines of JSON of a file that grows: only what came since the last time is read.

Place: between a run's files and `run_list`. A reader neither locks nor delays whoever writes.

Guarantees (tests of the same name):
  only_new_bytes_are_read     of a file that has grown; of one that has not, none.
  a_rewritten_file_is_read_anew   when a run is resumed, records beyond its checkpoint are dropped.
  half_a_line_waits           until it is whole.
  only_files_are_read         a pipe would hold up the reader, a device would never end; a part of it at a time.
"""

import contextlib
import json
import os
import stat
from pathlib import Path
from typing import Any

__all__ = ["Tail"]

_MOST_BYTES = 64 << 20


class Tail:
    """All lines so far; `grown` brings them up to date."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: tuple[int, int] | None = None
        self._size = 0
        self._read_bytes = 0
        self.lines: list[dict[str, Any]] = []
        self.changed_at = 0.0

    def grown(self) -> bool:
        """Reads what is new; whether there was anything."""
        try:
            facts = os.stat(self._path)
        except OSError:
            facts = None
        if facts is None or not stat.S_ISREG(facts.st_mode):
            was = bool(self.lines)
            self._forget()
            return was
        same = self._file == (facts.st_dev, facts.st_ino) and facts.st_size >= self._size
        if same and facts.st_size == self._size:
            return False
        if not same:
            self._forget()
        self._file, self.changed_at = (facts.st_dev, facts.st_ino), facts.st_mtime
        with contextlib.suppress(OSError), self._path.open("rb") as file:
            file.seek(self._read_bytes)
            content = file.read(_MOST_BYTES)
            # What is beyond it is read next time, as if it had come since.
            self._size = self._read_bytes + len(content)
            # A line that long is none of ours: it is passed over.
            ends = len(content) if len(content) == _MOST_BYTES and b"\n" not in content else content.rfind(b"\n") + 1
            whole = content[:ends]
            self._read_bytes += len(whole)
            for line in whole.splitlines():
                with contextlib.suppress(ValueError, RecursionError):
                    found = json.loads(line)
                    self.lines += [found] if isinstance(found, dict) else []
        return True

    def _forget(self) -> None:
        self._file, self._size, self._read_bytes = None, 0, 0
        self.lines = []
