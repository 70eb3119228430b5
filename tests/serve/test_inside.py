"""Names inside the folder."""

from pathlib import Path

import pytest

from gdpfed.errors import InputError
from gdpfed.serve.inside import inside, name_inside

NAMES = (
    "..", "../x", "a/../../x", "/etc/passwd", "", "a//b", "a\0b", "a\nb", "..\\x", "x" * 2000, "\udcff", "a/..",
    "./../x",
)  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_path_traversal_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match="inside the folder"):
        inside(tmp_path, name)


def test_links_that_lead_out_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    (folder / "in").mkdir(parents=True)
    (tmp_path / "secret.csv").write_text("client,epsilon\na,1\n")
    (folder / "out").symlink_to(tmp_path)
    (folder / "near").symlink_to(folder / "in")
    for name in ("out", "out/secret.csv", "near/../../secret.csv"):
        with pytest.raises(InputError, match="inside the folder"):
            inside(folder, name)
    assert inside(folder, "near/x.csv") == folder / "near" / "x.csv"
    assert name_inside(folder, inside(folder, "in/a b.csv")) == "in/a b.csv"
