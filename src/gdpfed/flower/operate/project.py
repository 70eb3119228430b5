"""A small project to start from: the two apps, what they train, what Flower needs to know, and a README.

Place: operations; `gdpfed flower new` and `gdpfed flower up` write it. It runs as it is.

Guarantees (tests of the same name):
  a_new_project_is_complete      Flower accepts it, and the modules that it names are there.
  a_project_is_not_written_over  a folder that has anything in it is refused.
"""

import keyword
import re
import string
from importlib import resources
from pathlib import Path

from gdpfed.errors import InputError

__all__ = ["check_project", "write_project"]

_FILES = ("pyproject.toml", "README.md", "{package}/server.py", "{package}/client.py", "{package}/task.py")


def write_project(folder: Path) -> list[Path]:
    """Writes the project into ``folder``, which is new or empty and gives it its name; returns the files."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"expected a new or empty folder, got {str(folder)!r}: choose another one")
    project = _project_name(folder.absolute().name)
    package = project.replace("-", "_")
    written = []
    templates = resources.files("gdpfed.flower.operate").joinpath("template")
    for target in _FILES:
        path = folder / target.format(package=package)
        text = templates.joinpath(f"{path.name}.txt").read_text(encoding="utf-8")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(string.Template(text).substitute(project=project, package=package), encoding="utf-8")
        written.append(path)
    empty = folder / package / "__init__.py"
    empty.write_text('"""The apps of this project."""\n', encoding="utf-8")
    return [*written, empty]


def check_project(folder: Path) -> Path:
    """The folder itself, if it is a project that Flower can run."""
    if not (folder / "pyproject.toml").is_file():
        raise InputError(f"expected a Flower app in {str(folder)!r}: make one with gdpfed flower new")
    return folder.absolute()


def _project_name(name: str) -> str:
    project = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    package = project.replace("-", "_")
    if not package.isidentifier() or keyword.iskeyword(package) or package in ("gdpfed", "flwr", "test", "tests"):
        raise InputError(f"expected the name of a Python package, got {name!r}: take another, such as my-federation")
    return project
