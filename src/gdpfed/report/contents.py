"""What a report is made of: records, runs, methods, and what they cost.

Place: `load_report` fills it; page, text and pictures are made of it. Costs are those of the verified plan; of an
unfinished run, the bound for the rounds that it has done. In a rotation the server's cost is anybody's, by asks so far.

Guarantees (tests of the same name):
  the_stamp_cannot_be_removed    an unknown one is a simulation's, and one simulated run is enough for all.
  what_an_unfinished_run_spent   covers every round that was done, recorded or not.
  a_rotation_costs_one_epsilon   against both adversaries, finished or not.
"""

import functools
import shlex
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from gdpfed.planning.plan import Group, Plan
from gdpfed.planning.rotation import most_asks
from gdpfed.planning.spent import spent_so_far
from gdpfed.privacy.adversaries import ServerView, asked_view, server_view
from gdpfed.runs.record import Record
from gdpfed.runs.stamp import STAMP, weakest_stamp
from gdpfed.tasks.task import Task

__all__ = ["GroupCost", "MethodRuns", "ReportData", "RunResult", "sample_std"]


def sample_std(accuracies: Sequence[float]) -> float | None:
    """Over seeds; None for one."""
    return statistics.stdev(accuracies) if len(accuracies) > 1 else None


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """One run folder, read and checked."""

    folder: str
    seed: int
    is_finished: bool
    rounds_done: int
    records: tuple[Record, ...]
    versions: tuple[tuple[str, str], ...]
    stamp: str

    @property
    def last(self) -> Record:
        """The last evaluation."""
        return self.records[-1]


@dataclass(frozen=True, kw_only=True)
class GroupCost:
    """What a group was promised, and what was spent: against whoever sees the released models, and the server."""

    group: Group
    release: float
    server: ServerView

    @property
    def keeps_promise(self) -> bool:
        """Whether the release cost is within the budget; false where nothing was promised."""
        return self.group.is_private and self.release <= self.group.epsilon


@dataclass(frozen=True, kw_only=True)
class MethodRuns:
    """All runs of one plan: one for each seed. ``index`` decides colour, dash and marker."""

    label: str
    index: int
    plan: Plan
    plan_hash: str
    run_toml: str
    runs: tuple[RunResult, ...]

    @property
    def is_finished(self) -> bool:
        """Whether at least one run is finished; otherwise its numbers are those of the last evaluations."""
        return any(run.is_finished for run in self.runs)

    @property
    def counted(self) -> tuple[RunResult, ...]:
        """The finished runs, or all where none is."""
        return tuple(run for run in self.runs if run.is_finished) or self.runs

    @property
    def accuracies(self) -> tuple[float, ...]:
        """The last accuracy of each counted run."""
        return tuple(run.last.accuracy for run in self.counted)

    @property
    def measure(self) -> str:
        """What ``accuracies`` are, in percent: of a task without right answers something else."""
        recorded = self.runs[0].last.measure
        return "test accuracy" if recorded == "accuracy" else recorded

    @property
    def mean(self) -> float:
        """Over seeds."""
        return statistics.fmean(self.accuracies)

    @property
    def std(self) -> float | None:
        """Over seeds; None for one."""
        return sample_std(self.accuracies)

    @property
    def loss(self) -> float:
        """The mean last loss over seeds."""
        return statistics.fmean(run.last.loss for run in self.counted)

    @property
    def rounds(self) -> tuple[int, ...]:
        """The rounds that every counted run evaluated; where there is none, those of the run with most."""
        evaluated = [{record.round_number for record in run.records} for run in self.counted]
        shared: set[int] = set.intersection(*evaluated) or max(evaluated, key=len)
        return tuple(sorted(shared))

    def accuracies_at(self, round_number: int) -> tuple[float, ...]:
        """Of every counted run that evaluated this round."""
        return tuple(
            record.accuracy for run in self.counted for record in run.records if record.round_number == round_number
        )

    def mean_at(self, round_number: int) -> float:
        """The mean of `accuracies_at`."""
        return statistics.fmean(self.accuracies_at(round_number))

    @property
    def is_simulation(self) -> bool:
        """Whether it was trained here: of a deployment nobody knows cohorts and clipping."""
        return all(run.stamp == STAMP for run in self.runs)

    @property
    def clipped_share(self) -> float | None:
        """Of all updates in the recorded rounds of all runs, those that the clip norm shortened; None if unknown."""
        records = [record for run in self.runs for record in run.records]
        clipped = [record.clipped for record in records if record.clipped is not None]
        if not self.is_simulation or len(clipped) < len(records):
            return None
        updates = sum(sum(record.cohort) for record in records)
        return sum(clipped) / updates if updates else 0.0

    @property
    def commands(self) -> list[str]:
        """What trains its simulated runs again, beside their folders."""
        simulated = [(run.folder, str(run.seed)) for run in self.runs if run.stamp == STAMP]
        return [
            shlex.join(["gdpfed", "train", f"{folder}/run.toml", "--seed", seed, "--out", f"again/{folder}"])
            for folder, seed in simulated
        ]

    @property
    def check_command(self) -> str:
        """What computes its epsilons again, beside its folders."""
        return shlex.join(["gdpfed", "verify", f"{self.runs[0].folder}/plan.toml"])

    @functools.cached_property
    def costs(self) -> tuple[GroupCost, ...]:
        """For each group; where no run is finished, a bound for the rounds that were done."""
        plan = self.plan
        rounds = plan.num_rounds if self.is_finished else max(run.rounds_done for run in self.runs)
        costs = []
        for group, release in zip(plan.groups, spent_so_far(plan, rounds), strict=True):
            if plan.is_rotation:
                server = asked_view(epsilon=release, num_asks=most_asks(plan, group, rounds=rounds))
            else:
                mechanism = replace(plan.mechanism(group), num_rounds=rounds)
                server = server_view(mechanism, delta=group.delta, max_participations=plan.max_participations)
            costs.append(GroupCost(group=group, release=release, server=server))
        return tuple(costs)


@dataclass(frozen=True, kw_only=True, eq=False)
class ReportData:
    """A task and its methods, the most accurate first."""

    title: str
    task: Task
    methods: tuple[MethodRuns, ...]

    @property
    def runs(self) -> list[RunResult]:
        """Of all methods."""
        return [run for method in self.methods for run in method.runs]

    @property
    def stamp(self) -> str:
        """What every output says; no file can take it away."""
        return weakest_stamp(run.stamp for run in self.runs)

    @property
    def is_simulation(self) -> bool:
        """Whether cohorts and clipping are known, and runs can be made again: in a deployment nobody knows."""
        return self.stamp == STAMP

    @property
    def headline(self) -> MethodRuns:
        """The most accurate method with privacy, finished before unfinished; one without only if there is no other."""
        return max(self.methods, key=lambda method: (method.plan.is_private, method.is_finished, method.mean))

    @property
    def private(self) -> list[MethodRuns]:
        """The methods with privacy."""
        return [method for method in self.methods if method.plan.is_private]

    @property
    def rivals(self) -> list[MethodRuns]:
        """The methods with privacy that are not the headline's."""
        return [method for method in self.private if method is not self.headline]

    @property
    def seeds(self) -> list[int]:
        """All seeds of all methods."""
        return sorted({run.seed for run in self.runs})

    @property
    def unfinished(self) -> list[RunResult]:
        """Runs that were reported only because that was asked for."""
        return [run for run in self.runs if not run.is_finished]

    @property
    def software(self) -> list[str]:
        """What ran, each combination once."""
        return list(dict.fromkeys(", ".join(map(" ".join, run.versions)) for run in self.runs))
