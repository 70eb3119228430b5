import contextlib
import errno
import json
import os
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gdpfed.errors import InputError, PrivacyError
from gdpfed.ledger import store as storing
from gdpfed.ledger.book import Ledger
from gdpfed.ledger.chain import following, pack
from gdpfed.ledger.journal import read_journal
from gdpfed.ledger.store import Store, is_ledger_file
from gdpfed.ledger.verify import verify_ledger
from tests.ledger import killer
from tests.ledger.books import DELTA, book, plan_for, play, scaled, start

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]), "OMP_NUM_THREADS": "1"}
ONE = "200@1"


def pristine(folder: Path, *, rounds: int = 200) -> Path:
    """A ledger with one group and a run that has charged nothing."""
    folder.mkdir()
    with Ledger.create(folder / "book") as ledger:
        ledger.add_population("people", scaled(ONE, 3.0), default_delta=DELTA)
        start(ledger, plan=plan_for(ONE, rounds=rounds, method="dp-fedavg"), text=ONE)
    return folder


@pytest.mark.processes
def test_killed_at_any_point(shelf: Path) -> None:
    """17 points, 20 kills each."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.ledger.killer", str(pristine(shelf / "pristine")), "20"],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=ROOT,
        env=ENVIRONMENT,
    )
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert len(summary) == 17
    for point, counts in summary.items():
        assert counts["charged"] == counts["released"] + counts["lost"]
        # A kill between the durable charge and the release loses a round; no other does.
        between = point in ("charge:after-journal", "charge:before-commit", "charge:after-commit", "release:before")
        assert counts["lost"] == (20 if between else 0), point
    for point in ("charge:torn-journal", "charge:after-journal", "publish:after-journal"):
        verify_ledger(shelf / point.replace(":", "-") / "book")


def test_a_second_writer_is_refused(shelf: Path) -> None:
    with book(shelf):
        script = "import sys; from gdpfed.ledger.book import Ledger; Ledger.open(sys.argv[1])"
        other = [sys.executable, "-c", script, str(shelf / "book")]
        refused = subprocess.run(other, capture_output=True, text=True, env=ENVIRONMENT, timeout=60)
        assert f"in use by process {os.getpid()}" in refused.stderr
        with pytest.raises(InputError, match="one process writes at a time"):
            Ledger.open(shelf / "book")
        # Reading is allowed.
        assert len(Ledger.read(shelf / "book").store.rows) == 2
    Ledger.open(shelf / "book").close()


def damaged(content: bytes, offset: int, *, cut: bool) -> bytes:
    return content[:offset] if cut else content[:offset] + bytes([content[offset] ^ 0x55]) + content[offset + 1 :]


def living_copy(shelf: Path) -> tuple[Path, int]:
    """The files of a ledger as a crash leaves them: six acknowledged rounds in the write-ahead log, no checkpoint."""
    with book(shelf, factor=3.0) as ledger:
        start(ledger)
        play(ledger, "run", range(6))
        copy = shelf / "copy"
        copy.mkdir()
        for file in shelf.glob("book*"):
            if not file.name.endswith(("-shm", ".lock")):
                shutil.copy(file, copy / file.name)
        return copy, len(ledger.store.rows)


def test_a_damaged_log_forgets_nothing(shelf: Path) -> None:
    copy, rows = living_copy(shelf)
    log = (copy / "book-wal").read_bytes()
    forgotten = 0
    for number, offset in enumerate(np.linspace(0, len(log) - 1, 50).astype(int)):
        case = shelf / f"case-{number}"
        shutil.copytree(copy, case)
        (case / "book-wal").write_bytes(damaged(log, int(offset), cut=number % 2 == 0))
        alone = shelf / f"alone-{number}"
        shutil.copytree(case, alone)
        with contextlib.closing(sqlite3.connect(alone / "book")) as database:
            forgotten += database.execute("SELECT count(*) FROM rows").fetchone()[0] < rows
        with Ledger.open(case / "book") as ledger:
            assert len(ledger.store.rows) == rows
            assert ledger.state.run("run").charged == [6, 6, 6]
            play(ledger, "run", range(6, 7))
        with contextlib.closing(sqlite3.connect(case / "book")) as database:
            assert database.execute("SELECT count(*) FROM rows").fetchone()[0] == rows + 9
    # The database alone would have forgotten in nearly all cases: the journal is what saves them.
    assert forgotten >= 40


def test_a_damaged_journal_is_repaired(shelf: Path) -> None:
    copy, rows = living_copy(shelf)
    journal = (copy / "book.journal").read_bytes()
    for number, offset in enumerate(np.linspace(0, len(journal) - 1, 50).astype(int)):
        case = shelf / f"case-{number}"
        shutil.copytree(copy, case)
        (case / "book.journal").write_bytes(damaged(journal, int(offset), cut=number % 2 == 0))
        with pytest.raises(PrivacyError, match="journal"):
            _expect_whole(case)
        with Ledger.open(case / "book") as ledger:
            assert len(ledger.store.rows) == rows
            whole = read_journal(case / "book")
            assert whole.rows == ledger.store.rows
            assert not whole.is_damaged
    # Both damaged: rows are lost for good, and the ledger says so instead of opening.
    (copy / "book-wal").unlink()
    (copy / "book.journal").write_bytes(damaged(journal, len(journal) // 2, cut=False))
    with pytest.raises(PrivacyError, match="rows are lost"):
        Ledger.open(copy / "book")


def _expect_whole(case: Path) -> None:
    if Store.read(case / "book").journal_is_damaged:
        raise PrivacyError("the journal is damaged")
    if len(read_journal(case / "book").rows) < len(Store.read(case / "book").rows):
        raise PrivacyError("the journal is cut at the end of a line")


@contextlib.contextmanager
def small_files(limit: int) -> Iterator[None]:
    """No file may grow beyond ``limit`` bytes: writes fail as on a full disk, in the operating system."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def journal_full(ledger: Ledger, folder: Path) -> contextlib.AbstractContextManager[object]:
    return small_files((folder / "book.journal").stat().st_size + 100)


def log_full(ledger: Ledger, folder: Path) -> contextlib.AbstractContextManager[object]:
    size = (folder / "book-wal").stat().st_size
    assert size > (folder / "book.journal").stat().st_size + 10_000
    return small_files(size)


@contextlib.contextmanager
def database_read_only(ledger: Ledger, folder: Path) -> Iterator[None]:
    ledger.store._database.execute("PRAGMA query_only = 1")  # type: ignore[union-attr]
    yield


@contextlib.contextmanager
def journal_read_only(ledger: Ledger, folder: Path) -> Iterator[None]:
    ledger.store._journal.close()  # type: ignore[union-attr]
    ledger.store._journal = (folder / "book.journal").open("rb", buffering=0)
    yield


@contextlib.contextmanager
def disk_read_only(ledger: Ledger, folder: Path) -> Iterator[None]:
    def fault(point: str) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    ledger.store._fault = fault
    yield


@pytest.mark.parametrize("trouble", [journal_full, log_full, database_read_only, journal_read_only, disk_read_only])
@pytest.mark.parametrize("commit", ["reserve", "charge", "publish"])
def test_a_full_disk_stops_before_the_release(
    shelf: Path, commit: str, trouble: Callable[[Ledger, Path], contextlib.AbstractContextManager[object]]
) -> None:
    folder = pristine(shelf / "pristine", rounds=20)
    killer.play(folder, rounds=2)
    released = 0
    with Ledger.open(folder / "book") as ledger:
        # The log has to be longer than the journal for its own limit.
        for number in range(2, 4):
            charge = ledger.reserve("run", number, "everyone")
            charge.commit(np.array([1]))
            charge.publish("ab" * 32)

        def attempt() -> None:
            nonlocal released
            reserved = None
            for step in ("reserve", "charge", "publish"):
                with trouble(ledger, folder) if step == commit else contextlib.nullcontext():
                    if step == "reserve":
                        reserved = ledger.reserve("run", 4, "everyone")
                    elif step == "charge":
                        reserved.commit(np.array([2]))  # type: ignore[union-attr]
                        released += 1
                    else:
                        reserved.publish("cd" * 32)  # type: ignore[union-attr]

        with pytest.raises(PrivacyError, match=f"cannot record '{commit}'.*nothing may be released"):
            attempt()
        # It does not go on by mistake.
        with pytest.raises(PrivacyError, match="open it again"):
            ledger.reserve("run", 5, "everyone")
    assert released == (commit == "publish")
    with Ledger.open(folder / "book") as ledger:
        assert ledger.state.run("run").charged[0] >= 4 + released
        charge = ledger.reserve("run", 4, "everyone")
        charge.commit(np.array([2]))
        charge.publish("cd" * 32)
    assert Ledger.read(folder / "book").state.run("run").charged[0] >= 5


def test_lost_last_rows_are_noticed(shelf: Path) -> None:
    copy, rows = living_copy(shelf)
    with contextlib.closing(sqlite3.connect(copy / "book")) as database:
        database.execute("DROP TRIGGER no_delete")
        database.execute("DELETE FROM rows WHERE number > ?", (rows - 3,))
        database.commit()
    lines = (copy / "book.journal").read_bytes().splitlines(keepends=True)
    # The last line holds what was published together, three rows.
    (copy / "book.journal").write_bytes(b"".join(lines[:-1]))
    with pytest.raises(PrivacyError, match=f"row {rows - 2} is missing.*sealed head says {rows}"):
        Ledger.read(copy / "book")
    # With a head to match, but without the key to seal it.
    with contextlib.closing(sqlite3.connect(copy / "book")) as database:
        last = database.execute("SELECT hash FROM rows ORDER BY number DESC").fetchone()[0]
        database.execute("UPDATE head SET number = ?, hash = ?", (rows - 3, last))
        database.commit()
    with pytest.raises(PrivacyError, match="sealed with another key"):
        Ledger.open(copy / "book")


def test_nobody_else_reads_the_samples(shelf: Path) -> None:
    with book(shelf):
        modes = {file.name: file.stat().st_mode & 0o077 for file in shelf.glob("book*")}
    assert {name for name, open_to_others in modes.items() if open_to_others} <= {"book.lock"}
    assert len(modes) >= 5


def test_killed_while_it_is_made(shelf: Path) -> None:
    """Once in a node's life nobody is there to clean up: the first message to it makes its ledger."""

    def killed_at(point: str, path: Path) -> None:
        child = os.fork()
        if child == 0:
            try:
                Store.create(path, fault=lambda name: os.kill(os.getpid(), signal.SIGKILL) if name == point else None)
            finally:
                os._exit(3)
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status), point

    for number, point in enumerate(("create:key", "create:tables", "create:committed", "create:database")):
        path = shelf / str(number) / "book"
        killed_at(point, path)
        assert path.exists() == (point == "create:database")
        with Ledger.open(path) if path.exists() else Ledger.create(path) as ledger:
            ledger.add_population("people", scaled(ONE, 1.0))
        assert verify_ledger(path).num_rows == 2
        assert not [file.name for file in path.parent.iterdir() if "new" in file.name]


def test_reading_writes_nothing(shelf: Path) -> None:
    """Not even SQLite's own files; also on a disk that cannot be written. Beside a writer rows of its log are seen."""

    def files() -> dict[str, tuple[int, bytes]]:
        return {file.name: (file.stat().st_mtime_ns, file.read_bytes()) for file in shelf.iterdir()}

    with book(shelf) as ledger:
        rows = len(ledger.store.rows)
        assert len(Ledger.read(shelf / "book").store.rows) == rows
        start(ledger)
        assert len(Ledger.read(shelf / "book").store.rows) == rows + 1
    before = files()
    assert len(Ledger.read(shelf / "book").store.rows) == rows + 1
    assert verify_ledger(shelf / "book").num_rows == rows + 1
    assert files() == before
    # What an earlier version left behind holds nothing.
    (shelf / "book-wal").touch()
    before = files()
    assert len(Ledger.read(shelf / "book").store.rows) == rows + 1
    assert files() == before
    assert is_ledger_file(shelf / "book")
    assert not is_ledger_file(shelf / "book.journal")


def test_a_writer_that_comes_in_between_is_seen(shelf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = book(shelf)
    rows = len(ledger.store.rows)
    ledger.close()
    writers: list[Ledger] = []
    both_records = storing._both_records

    def meanwhile(path: Path, database: sqlite3.Connection, key: bytes | None) -> Any:
        records = both_records(path, database, key)
        if not writers:
            # It appends itself to the list first: opening reads both records too.
            writers.append(ledger)
            writers.append(Ledger.open(path))
            writers[1].leave("people", ["1"])
        return records

    monkeypatch.setattr(storing, "_both_records", meanwhile)
    assert len(Ledger.read(shelf / "book").store.rows) == rows + 1
    writers[1].close()


def test_stopped_before_the_first_row(shelf: Path) -> None:
    Store.create(shelf / "book").close()
    with Ledger.open(shelf / "book") as ledger:
        ledger.add_population("people", scaled(ONE, 1.0))
    assert verify_ledger(shelf / "book").num_rows == 2


def test_refusals(shelf: Path) -> None:
    with pytest.raises(InputError, match="gdpfed ledger init"):
        Ledger.open(shelf / "nothing")
    book(shelf).close()
    with pytest.raises(InputError, match="never overwritten"):
        Ledger.create(shelf / "book")
    with pytest.raises(InputError, match="snapshot"):
        Ledger.read(shelf / "book").leave("people", ["1"])
    (shelf / "other").write_text("no database, but long enough to be taken for one, perhaps")
    shutil.copy(shelf / "book.key", shelf / "other.key")
    with pytest.raises((InputError, PrivacyError), match="which is none, or damaged"):
        Ledger.open(shelf / "other")
    (shelf / "book.key").unlink()
    with pytest.raises(InputError, match="key_file"):
        Ledger.open(shelf / "book")
    # Without the key the seal is not checked, but all else is.
    assert Ledger.read(shelf / "book").store.key is None
    (shelf / "book.key").write_bytes(b"short")
    with pytest.raises(InputError, match="32 bytes"):
        Ledger.open(shelf / "book")


# A process with a ledger and a child is killed; the child lives on, with whatever it inherited.
ORPHAN = """
import os, signal, sys, time
from gdpfed.errors import InputError
from gdpfed.ledger.book import Ledger
ledger = Ledger.open(sys.argv[1])
ours, theirs = os.pipe()
child = os.fork()
if child == 0:
    try:
        ledger.leave("people", ["0"])
    except InputError:
        os.write(theirs, b"refused")
    os.closerange(0, 3)
    time.sleep(60)
    os._exit(0)
assert os.read(ours, 10) == b"refused"
try:
    Ledger.open(sys.argv[1])
except InputError:
    print(child, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_child_does_not_hold_the_lock(shelf: Path) -> None:
    book(shelf).close()
    command = [sys.executable, "-c", ORPHAN, str(shelf / "book")]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT, timeout=60)
    child = int(done.stdout)
    try:
        with Ledger.open(shelf / "book") as ledger:
            assert len(ledger.store.rows) == 2
    finally:
        os.kill(child, signal.SIGKILL)


def test_rows_added_to_the_journal_need_the_key(shelf: Path) -> None:
    """Properly chained, as if the database had not committed them yet."""
    with book(shelf) as ledger:
        start(ledger)
        last = ledger.store.rows[-1]
    forged = following(last.hash, last.number + 1, "leave", {"population": "people", "clients": pack(np.array([0]))})
    with open(shelf / "book.journal", "ab") as file:
        file.write(f"{forged.number}\t{forged.kind}\t{forged.hash}\t{forged.body}\n".encode())
    with pytest.raises(PrivacyError, match="row 4 "):
        verify_ledger(shelf / "book")
    with pytest.raises(PrivacyError, match="row 4 "):
        Ledger.open(shelf / "book")


def test_a_stated_key_is_read(shelf: Path) -> None:
    book(shelf).close()
    with pytest.raises(InputError, match="cannot read the ledger's key"):
        verify_ledger(shelf / "book", key_file=shelf / "elsewhere")


def test_new_folders_are_durable(shelf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file survives a power cut only if the names of all folders above it do."""
    synced: list[Path] = []
    monkeypatch.setattr("gdpfed.ledger.store.sync_folder", synced.append)
    Ledger.create(shelf / "a" / "b" / "book", key_file=shelf / "key").close()
    assert {shelf, shelf / "a", shelf / "a" / "b"} <= set(synced)
