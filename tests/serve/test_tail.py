"""Files that grow."""

import json
import os
from pathlib import Path
from unittest import mock

import pytest

from gdpfed.serve import tail as tail_module
from gdpfed.serve.tail import Tail


def write(path: Path, *numbers: int, mode: str = "a", rest: str = "") -> None:
    with path.open(mode) as file:
        file.write("".join(json.dumps({"round": number}) + "\n" for number in numbers) + rest)


def rounds(tail: Tail) -> list[int]:
    return [line["round"] for line in tail.lines]


def test_only_new_bytes_are_read(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    tail = Tail(path)
    assert not tail.grown()
    write(path, 1, 2)
    assert tail.grown()
    with mock.patch.object(Path, "open", side_effect=AssertionError("read without need")):
        assert not tail.grown()
    write(path, 3)
    real = Path.open
    read: list[int] = []

    def counted(self: Path, *arguments: object, **named: object) -> object:
        file = real(self, *arguments, **named)  # type: ignore[call-overload]
        inner = file.read
        file_read = mock.Mock(wraps=file)
        file_read.__enter__ = lambda _: file_read
        file_read.__exit__ = lambda *_: file.close()

        def noted(most: int) -> bytes:
            content: bytes = inner(most)
            read.append(len(content))
            return content

        file_read.read = noted
        return file_read

    with mock.patch.object(Path, "open", counted):
        assert tail.grown()
    assert read == [len('{"round": 3}\n')]
    assert rounds(tail) == [1, 2, 3]


def test_a_rewritten_file_is_read_anew(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    tail = Tail(path)
    write(path, 1, 2, 3)
    tail.grown()
    write(path, 1, mode="w")
    assert tail.grown()
    assert rounds(tail) == [1]
    # As a resumed run does it: another file of the same name, which is soon longer.
    write(tmp_path / "part", 1, 20, 30, 40)
    os.replace(tmp_path / "part", path)
    assert tail.grown()
    assert rounds(tail) == [1, 20, 30, 40]
    path.unlink()
    assert tail.grown()
    assert rounds(tail) == []
    assert not tail.grown()


def test_half_a_line_waits(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    tail = Tail(path)
    write(path, 1, rest='{"rou')
    tail.grown()
    assert rounds(tail) == [1]
    with path.open("a") as file:
        file.write('nd": 2}\nnonsense\n[3]\n')
    tail.grown()
    assert rounds(tail) == [1, 2]


def test_only_files_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "endless").symlink_to("/dev/zero")
    (tmp_path / "folder").mkdir()
    for name in ("pipe", "endless", "folder"):
        tail = Tail(tmp_path / name)
        with mock.patch.object(Path, "open", side_effect=AssertionError("opened")):
            assert not tail.grown()
        assert tail.lines == []
    # A part at a time, and none of it twice; a line longer than a part is passed over.
    monkeypatch.setattr(tail_module, "_MOST_BYTES", 40)
    path = tmp_path / "records.jsonl"
    write(path, 1, 2, 3, 4, rest=f'{{"round": 5, "long": "{"x" * 200}"}}\n')
    write(path, 6, 7)
    tail = Tail(path)
    assert tail.grown()
    assert rounds(tail) == [1, 2, 3]
    for _ in range(20):
        tail.grown()
    assert rounds(tail) == [1, 2, 3, 4, 6, 7]
    assert not tail.grown()
