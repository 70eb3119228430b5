"""Prints the oldest versions that pyproject.toml allows, as constraints for pip: what `release_check.sh` installs.

torch is left out: it is pinned in constraints.txt, and another build of it may be gigabytes.

python tools/oldest.py torch plots parquet     of the package and these extras
"""

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def oldest(extras: list[str]) -> list[str]:
    """A line for each direct dependency with a lower bound."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    optional = project["optional-dependencies"]
    wanted = [*project["dependencies"], *(entry for extra in extras for entry in optional[extra])]
    found = (re.match(r"([A-Za-z0-9._-]+)(?:\[.*\])?>=([^,]+)", entry) for entry in wanted)
    return [f"{match[1]}=={match[2]}" for match in found if match and match[1] != "torch"]


if __name__ == "__main__":
    sys.stdout.write("\n".join(oldest(sys.argv[1:])) + "\n")
