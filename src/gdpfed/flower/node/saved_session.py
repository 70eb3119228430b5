"""The secrets of a client between two stages, on a node's disk: loaded once, then gone.

Place: under `answers.Node`, in the home's folder `sessions`. Flower starts a process for each message, so that what a
client remembers must lie somewhere. A saved state is claimed by renaming it, which works for one process once; the
claim is on the disk before the state is used. A message that was refused changed nothing, and gives the state back.

Guarantees (tests of the same name):
  a_state_is_loaded_once        by one of several processes, also after a crash.
  a_refusal_gives_the_state_back   and nothing else does.
  old_sessions_are_forgotten    a new session deletes what is left of others, and the key that it uses.
  a_key_is_claimed_once         durably, before it is used; after a crash it is gone.

Does not: wipe the disk's blocks. Whoever can read deleted blocks of the node's disk could read old secrets. A session's
are of use only together with a recording of that round's messages; a one-time key makes a colluder until the run ends.
"""

import contextlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gdpfed.errors import InputError, PrivacyError
from gdpfed.files import sync_folder, write_whole
from gdpfed.secure.client_state import OneTimeKey

__all__ = ["Saved", "SavedSessions"]

_NEXT_KEY = "next.key"


@dataclass(frozen=True, kw_only=True, repr=False)
class Saved:
    """A session's terms and session, as they were received, and the secure client's state."""

    terms: bytes
    session: bytes
    client: bytes

    def encode(self) -> bytes:
        """As bytes, secrets included."""
        return json.dumps({name: value.hex() for name, value in vars(self).items()}).encode()

    @staticmethod
    def decode(content: bytes) -> "Saved":
        """From `encode`."""
        try:
            return Saved(**{name: bytes.fromhex(value) for name, value in json.loads(content).items()})
        except (ValueError, TypeError, AttributeError):
            raise InputError("expected the saved state of a session, got something else") from None


def _claim_of(path: Path) -> Path:
    return path.with_name(path.name + ".claimed")


class SavedSessions:
    """The folder; ``stage`` is the stage for which a state waits."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def _path(self, digest: bytes, stage: str) -> Path:
        return self._folder / f"{digest.hex()}.{stage}"

    def keep(self, digest: bytes, stage: str, saved: Saved) -> None:
        """Saves what the next stage needs."""
        self._folder.mkdir(mode=0o700, exist_ok=True)
        write_whole(self._path(digest, stage), saved.encode(), private=True, durable=True)

    @property
    def next_key(self) -> OneTimeKey | None:
        """The key that is advertised for this node's next session; None if none is, or its file is damaged."""
        try:
            return OneTimeKey.decode((self._folder / _NEXT_KEY).read_bytes())
        except (FileNotFoundError, InputError):
            return None

    def keep_next_key(self, key: OneTimeKey) -> None:
        """Until it is claimed. Durable: what is advertised is there."""
        self._folder.mkdir(mode=0o700, exist_ok=True)
        # Of a process that was killed.
        _claim_of(self._folder / _NEXT_KEY).unlink(missing_ok=True)
        write_whole(self._folder / _NEXT_KEY, key.encode(), private=True, durable=True)

    @contextlib.contextmanager
    def claimed_key(self) -> Iterator[OneTimeKey]:
        """The key of the session that begins.

        Given back if the block raises InputError or PrivacyError before it called `forget`, else deleted.
        """
        path = self._folder / _NEXT_KEY
        claim = self._claim(path, "no key is advertised for another session, or it was used already")
        try:
            yield OneTimeKey.decode(claim.read_bytes())
        except (InputError, PrivacyError):
            with contextlib.suppress(FileNotFoundError):
                os.rename(claim, path)
            raise
        finally:
            claim.unlink(missing_ok=True)

    def _claim(self, path: Path, missing: str) -> Path:
        """Works once for each file, by a name that nobody else looks for; on the disk when this returns."""
        claim = _claim_of(path)
        try:
            os.rename(path, claim)
        except FileNotFoundError:
            raise PrivacyError(missing) from None
        sync_folder(self._folder)
        return claim

    def forget(self) -> None:
        """Deletes all sessions and the key of the next one, durably: a node is in one at a time, each with its key."""
        if self._folder.is_dir():
            for path in self._folder.iterdir():
                path.unlink(missing_ok=True)
            sync_folder(self._folder)

    @contextlib.contextmanager
    def claimed(self, digest: bytes, stage: str) -> Iterator[Saved]:
        """The state that waits for a stage. Given back if the block raises InputError or PrivacyError, else deleted.

        Not given back either if the next stage's state was kept: an error after that (the folder could not be synced)
        would leave two states, of which each could be answered.
        """
        path = self._path(digest, stage)
        claim = self._claim(path, f"no session waits for stage {stage!r}, or it was answered already")
        is_over = True
        try:
            yield Saved.decode(claim.read_bytes())
        except (InputError, PrivacyError):
            is_over = any(other != claim for other in self._folder.glob(f"{digest.hex()}.*"))
            if not is_over:
                # Gone if another process has begun a new session.
                with contextlib.suppress(FileNotFoundError):
                    os.rename(claim, path)
            raise
        finally:
            if is_over:
                claim.unlink(missing_ok=True)
