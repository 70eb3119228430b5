"""What each node last signed about its own ledger, kept by the server.

Place: in the server's home. A node that comes back with fewer rows than it once signed was put back to an old copy: the
server shows it what it signed, and the node refuses by itself.

Guarantees (tests of the same name):
  the_furthest_standing_is_kept    an older one never replaces it.
"""

import json
from collections.abc import Callable
from pathlib import Path

from gdpfed.errors import GdpfedError, InputError
from gdpfed.files import write_whole
from gdpfed.flower.shared.enrolment import Enrolment
from gdpfed.flower.shared.wire import Standing

__all__ = ["Standings"]


class Standings:
    """By client number; in the file by identity, since numbers belong to one enrolment."""

    def __init__(self, path: Path, enrolment: Enrolment, *, log: Callable[[str], None]) -> None:
        self._path, self._enrolment, self._log = path, enrolment, log
        self._kept: dict[str, Standing] = {}
        if path.is_file():
            try:
                read = json.loads(path.read_text(encoding="utf-8"))
                self._kept = {key: Standing.decode(bytes.fromhex(text)) for key, text in read.items()}
            except (ValueError, AttributeError, TypeError, GdpfedError):
                raise InputError(f"{str(path)!r} is damaged: restore it, or delete it") from None

    def take(self, client: int, content: bytes, nonce: bytes) -> Standing | None:
        """Keeps a standing that its client signed for this nonce; None if it did not."""
        public = self._enrolment.directory.clients.get(client)
        try:
            standing = Standing.decode(content)
        except InputError:
            return None
        is_for_us = standing.client == client and standing.nonce == nonce
        if public is None or not is_for_us or not standing.is_signed_by(public):
            return None
        known = self._kept.get(public.hex())
        if known is not None and known.num_rows > standing.num_rows:
            self._log(f"client {self._enrolment.clients[client].name!r} has an older ledger than it had: an old copy?")
        else:
            self._kept[public.hex()] = standing
        return standing

    def shown_to(self, client: int) -> bytes:
        """What the client signed last; empty if nothing."""
        known = self._kept.get(self._enrolment.directory.clients[client].hex())
        # A client that was enrolled again has another number: its own word still counts.
        return b"" if known is None else known.encode()

    def save(self) -> None:
        """On the disk."""
        content = {key: standing.encode().hex() for key, standing in sorted(self._kept.items())}
        write_whole(self._path, json.dumps(content, indent=1).encode(), private=True, durable=True)
