"""One group of a plan under audit: what every attack of this package is pointed at.

Place: below canaries, sampler, losses and lies; above the curves.
"""

from dataclasses import dataclass

from gdpfed.audit.privacy_curves import CurveFamily, ReleaseFamily, ServerFamily
from gdpfed.planning.plan import Group, Plan
from gdpfed.privacy.accountant import SampledGaussian

__all__ = ["AuditedGroup"]


@dataclass(frozen=True, kw_only=True)
class AuditedGroup:
    """A group of a plan, by its index; so many canaries are sent, with this seed."""

    plan: Plan
    group_index: int
    num_canaries: int
    seed: int

    @property
    def group(self) -> Group:
        """The group itself."""
        return self.plan.groups[self.group_index]

    @property
    def mechanism(self) -> SampledGaussian:
        """As the accountant judges it."""
        return self.plan.mechanism(self.group)

    @property
    def sum_index(self) -> int:
        """Which of a round's sums the group is in."""
        return 0 if self.plan.release == "pooled" else self.group_index

    def claims(self) -> dict[str, tuple[CurveFamily, float]]:
        """For both views its curves, and the epsilon that the plan claims at the group's delta."""
        server = ServerFamily(
            mechanism=self.mechanism, delta=self.group.delta, max_participations=self.plan.max_participations
        )
        return {
            "release": (ReleaseFamily(mechanism=self.mechanism, delta=self.group.delta), self.group.epsilon_release),
            "server": (server, self.group.epsilon_server),
        }
