import os
import stat
from pathlib import Path

import pytest

from gdpfed.errors import InputError
from gdpfed.files import whole_file


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("before", ["nothing", "a wide file", "a wide part", "a link as part", "a link"])
def test_nobody_else_reads_it(tmp_path: Path, before: str) -> None:
    path, part, elsewhere = tmp_path / "out", tmp_path / "out.part", tmp_path / "elsewhere"
    elsewhere.write_text("old")
    elsewhere.chmod(0o666)
    if before in ("a wide file", "a wide part"):
        chosen = path if before == "a wide file" else part
        chosen.write_text("old")
        chosen.chmod(0o666)
    elif before != "nothing":
        (part if before == "a link as part" else path).symlink_to(elsewhere)
    mask = os.umask(0)
    try:
        with whole_file(path, private=True) as file:
            assert mode(part) == 0o600
            file.write(b"secret")
    finally:
        os.umask(mask)
    assert path.read_bytes() == b"secret"
    assert mode(path) == 0o600
    assert not path.is_symlink()
    assert not part.exists()
    assert elsewhere.read_text() == "old"


def test_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_text("before")

    def failing(error: BaseException) -> None:
        with whole_file(path, private=True) as file:
            file.write(b"half")
            raise error

    with pytest.raises(KeyboardInterrupt):
        failing(KeyboardInterrupt())
    with pytest.raises(InputError, match="No space left"):
        failing(OSError(28, "No space left on device"))
    assert path.read_text() == "before"
    assert [one.name for one in tmp_path.iterdir()] == ["out"]
    with pytest.raises(InputError, match="which is a folder"), whole_file(tmp_path, private=True):
        pass
    with pytest.raises(InputError, match="cannot write"), whole_file(tmp_path / "no folder" / "out", private=True):
        pass
    with pytest.raises(InputError, match="which is none"), whole_file(Path(os.devnull), private=True):
        pass
