"""What every output of a simulation says.

Place: beside the run folder, without its dependencies, so that a report can be made where nothing is trained.
"""

__all__ = ["STAMP"]

STAMP = "simulation: not a private release (seeded noise, data in one place)"
