"""What every cohort must stand, as the server's settings and its signed terms state it.

Place: below both. The command line reads the settings' fields also where the packages of secure sums are missing, so
these are imported when they are needed.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gdpfed.secure.noise_shares import Tolerance

__all__ = ["StatedTolerance"]


@dataclass(frozen=True, kw_only=True)
class StatedTolerance:
    """The numbers of a `secure.noise_shares.Tolerance`."""

    dropout_rate: float
    colluding_fraction: float
    complete_up_to: int

    def __post_init__(self) -> None:
        _ = self.tolerance

    @property
    def tolerance(self) -> "Tolerance":
        """What every cohort must stand."""
        from gdpfed.secure.noise_shares import Tolerance

        return Tolerance(
            dropout_rate=self.dropout_rate,
            colluding_fraction=self.colluding_fraction,
            complete_up_to=self.complete_up_to,
        )
