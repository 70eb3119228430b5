"""What every output of a run says: a simulation, a deployment, or the test of one.

Place: beside the run folder, without its dependencies, so that a report can be made where nothing is trained.
"""

from collections.abc import Iterable

__all__ = ["DEPLOYED", "STAMP", "TESTED", "weakest_stamp"]

STAMP = "simulation: not a private release (seeded noise, data in one place)"
DEPLOYED = "deployment: noise from the operating system, sums by secure aggregation"
TESTED = "test of a deployment: not a private release (predictable noise)"


def weakest_stamp(stamps: Iterable[object]) -> str:
    """What may be said of several runs together. An unknown stamp, or none, is a simulation's."""
    strengths = (STAMP, TESTED, DEPLOYED)
    return strengths[min((strengths.index(str(text)) if text in strengths else 0 for text in stamps), default=0)]
