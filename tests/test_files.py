"""Files that are written whole or not at all."""

import os
from pathlib import Path

import pytest

from gdpfed.errors import InputError
from gdpfed.files import check_writable, missing, nothing_left, write_whole


def test_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "report.html"
    write_whole(target, b"before")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(InputError, match=r"No space left on device; nothing was changed"):
        write_whole(target, b"after")
    assert target.read_bytes() == b"before"
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]
    with pytest.raises(InputError, match="which is a folder"):
        check_writable(tmp_path)
    with pytest.raises(InputError, match="make it first"):
        check_writable(tmp_path / "no" / "report.html")


def test_nothing_is_left(tmp_path: Path) -> None:
    """New folders go, with all in them; what stood there before stays."""
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "kept").write_text("kept")
    paths = [tmp_path / "new" / "er" / "file", tmp_path / "old" / "made", tmp_path / "old" / "kept"]
    for error in (InputError("no"), KeyboardInterrupt()):
        with pytest.raises(type(error)), nothing_left(missing(*paths)):  # noqa: PT012 - what is left counts
            paths[0].parent.mkdir(parents=True)
            for path in paths[:2]:
                path.write_text("made")
            raise error
        assert sorted(path.name for path in tmp_path.rglob("*")) == ["kept", "old"]
    with nothing_left(missing(*paths)):
        paths[1].write_text("made")
    assert paths[1].exists()
