"""How a deployment stands, for a page that asks every two seconds.

Place: between `flower.operate.status`, which says how a server's home stands, and the page. The status names clients;
the page counts them and names none. It is read again when a file has changed, or was long ago.

Guarantees (tests of the same name):
  nobody_is_named                    no client's name is in what is shown.
  a_false_plan_is_not_shown          its promises are computed again before they are printed.
  a_home_is_read_when_it_changes     and not once for every page that asks.
"""

import contextlib
import os
import threading
import time
from pathlib import Path

from gdpfed.errors import GdpfedError, InputError
from gdpfed.flower.operate.status import ServerStatus, home_at, status_of
from gdpfed.flower.server.server_home import ServerHome
from gdpfed.planning.plan_file import load_plan
from gdpfed.serve.pages import rendered

__all__ = ["DeploymentWatch"]

# A process that ends leaves no trace in a file.
_LONG_AGO = 10.0


class DeploymentWatch:
    """A server's home, looked at again and again, by several threads."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._seen: tuple[object, float, ServerStatus] | None = None
        self._verified: int | None = None
        self._lock = threading.Lock()
        if not isinstance(home_at(home), ServerHome):
            raise InputError(f"expected a server's home, got a node's: gdpfed flower status {home}")

    def status(self) -> ServerStatus:
        """As it stands now."""
        with self._lock:
            stamp, now = _stamp(self._home), time.monotonic()
            if self._seen is None or self._seen[0] != stamp or now - self._seen[1] > _LONG_AGO:
                self._seen = stamp, now, self._found()
            return self._seen[2]

    def _found(self) -> ServerStatus:
        try:
            found = status_of(self._home)
            self._verify_plan()
        except GdpfedError as error:
            # What is wrong may be a client's name.
            why = f"this home cannot be read: gdpfed flower status {self._home} says why"
            raise InputError(why) from error
        if not isinstance(found, ServerStatus):
            raise InputError(f"expected a server's home, got a node's: {str(self._home)!r}")
        return found

    def _verify_plan(self) -> None:
        """Once for each version of its file: a status trusts it, a page that prints its epsilons does not."""
        path = self._home / "plan.toml"
        version = path.stat().st_mtime_ns if path.is_file() else None
        if version is not None and version != self._verified:
            load_plan(path)
        self._verified = version

    def answer(self) -> dict[str, str]:
        """What the page shows, and the same in a sentence for whoever does not see it."""
        status = self.status()
        ago = None if status.last_event is None else max(0.0, time.time() - status.last_event)
        judged = "" if status.accuracy is None else f", accuracy {status.accuracy:.2f} %"
        words = f"{status.state}: {status.rounds_done} of {status.num_rounds or 0} rounds done{judged}"
        return {"html": rendered("deployment_answer.html", status=status, seconds_ago=ago), "words": words}


def _stamp(home: Path) -> object:
    """Other than before if a file of the home, or of its run, has changed; Flower's own database is not looked at."""
    found = []
    for folder in (home, home / "run"):
        # What is being replaced is there in the next look.
        with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.startswith("superlink.db"):
                    continue
                with contextlib.suppress(FileNotFoundError):
                    stat = entry.stat(follow_symlinks=False)
                    found.append((entry.path, stat.st_mtime_ns, stat.st_size))
    return sorted(found)
