"""Every number that the paper prints, as data.

Place: what ours is held against. `paper.json` is shipped in the package; accuracies are percent, mean and std over
three seeds, and "sigma_squared" is the square of a noise multiplier.
"""

import functools
import json
from importlib import resources
from typing import Any

__all__ = ["paper_tables"]


@functools.cache
def paper_tables() -> dict[str, Any]:
    """The paper's tables, by name."""
    text = resources.files("gdpfed.report").joinpath("paper.json").read_text(encoding="utf-8")
    tables: dict[str, Any] = json.loads(text)
    return tables
