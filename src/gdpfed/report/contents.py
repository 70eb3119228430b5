"""What a report is made of: records, runs, methods, and what they cost.

Place: `load_report` fills it; page, text and pictures are made of it. Costs are those of the verified plan; of an
unfinished run, the bound for the rounds that it has done; of a run on a ledger, for those that it was charged, beside
what its clients have spent over all runs. In a rotation the server's cost is anybody's, by asks so far. A plan alone is
a method without runs.

Guarantees (tests of the same name):
  the_stamp_cannot_be_removed    an unknown one is a simulation's, and one simulated run is enough for all.
  what_an_unfinished_run_spent   covers every round that was done, recorded or not.
  a_rotation_costs_one_epsilon   against both adversaries, finished or not.
  a_run_on_a_ledger_has_two_costs   its own, lost rounds with it, and that of all runs.
"""

import functools
import shlex
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

import gdpfed
from gdpfed.planning.notes import plan_doubts
from gdpfed.planning.plan import Group, Plan
from gdpfed.planning.rotation import most_asks
from gdpfed.planning.spent import spent_after
from gdpfed.privacy.adversaries import ServerView, asked_view, server_view
from gdpfed.runs.record import Record
from gdpfed.runs.stamp import STAMP, weakest_stamp
from gdpfed.tasks.task import Task

__all__ = ["GroupCost", "MethodRuns", "ReportData", "RunResult", "sample_std"]

_PLANNED = "plan: nothing is trained yet, and all numbers follow from the plan"


def sample_std(accuracies: Sequence[float]) -> float | None:
    """Over seeds; None for one."""
    return statistics.stdev(accuracies) if len(accuracies) > 1 else None


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """One run folder, read and checked.

    ``charged`` is how often its ledger charged each group, and ``over_all_runs`` what a group's clients had spent by
    then in all runs of it; None without a ledger, or where it is not at hand.
    """

    folder: str
    seed: int
    is_finished: bool
    rounds_done: int
    records: tuple[Record, ...]
    versions: tuple[tuple[str, str], ...]
    stamp: str
    remarks: tuple[str, ...] = ()
    charged: tuple[int, ...] | None = None
    over_all_runs: tuple[float, ...] | None = None

    @property
    def last(self) -> Record:
        """The last evaluation."""
        return self.records[-1]


@dataclass(frozen=True, kw_only=True)
class GroupCost:
    """What a group was promised, and what was spent: against whoever sees the released models, and the server.

    ``over_all_runs`` is against the first of them, by the ledger, if there is one.
    """

    group: Group
    release: float
    server: ServerView
    over_all_runs: float | None = None

    @property
    def keeps_promise(self) -> bool:
        """Whether the release cost is within the budget; false where nothing was promised."""
        return self.group.is_private and self.release <= self.group.epsilon

    @property
    def most(self) -> float:
        """What whoever sees the models may ever have had: the promise, or more where a ledger says so."""
        return max(self.group.epsilon, self.release, self.over_all_runs or 0.0)


@dataclass(frozen=True, kw_only=True)
class MethodRuns:
    """All runs of one plan: one for each seed, or none yet. ``index`` decides colour, dash and marker.

    ``check_commands`` compute its epsilons again, beside its folders.
    """

    label: str
    index: int
    plan: Plan
    plan_hash: str
    run_toml: str
    runs: tuple[RunResult, ...]
    check_commands: tuple[str, ...]

    @property
    def remarks(self) -> list[str]:
        """What to know before its result is trusted: of the plan, and of the runs."""
        told = [remark for run in self.runs for remark in (*run.remarks, run.last.public_data_remark) if remark]
        return list(dict.fromkeys([*plan_doubts(self.plan), *told]))

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
        return bool(self.runs) and all(run.stamp == STAMP for run in self.runs)

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
            f"{shlex.join(['gdpfed', 'train', f'{folder}/run.toml', '--plan', f'{folder}/plan.toml'])} "
            f"{shlex.join(['--seed', seed, '--out', f'again/{folder}'])}"
            for folder, seed in simulated
        ]

    def _releases(self, index: int) -> int:
        """How many releases the most charged client of a group was in, at most; of a plan alone, all."""
        plan, counts = self.plan, [] if self.runs else [self.plan.num_releases]
        for run in self.runs if not self.is_finished else self.counted:
            rounds = plan.num_rounds if run.is_finished and run.over_all_runs is None else run.rounds_done
            asks = most_asks(plan, plan.groups[index], rounds=rounds) if plan.is_rotation else rounds
            counts.append(asks if run.charged is None else run.charged[index])
        return max(counts)

    @functools.cached_property
    def costs(self) -> tuple[GroupCost, ...]:
        """For each group; where no run is finished, a bound for the rounds that were done."""
        plan = self.plan
        costs = []
        for index, group in enumerate(plan.groups):
            count = self._releases(index)
            release = spent_after(plan, group, count)
            if plan.is_rotation:
                server = asked_view(epsilon=release, num_asks=count)
            else:
                mechanism = replace(plan.mechanism(group), num_rounds=count)
                server = server_view(mechanism, delta=group.delta, max_participations=plan.max_participations)
            in_all = max((run.over_all_runs[index] for run in self.runs if run.over_all_runs), default=None)
            costs.append(GroupCost(group=group, release=release, server=server, over_all_runs=in_all))
        return tuple(costs)


@dataclass(frozen=True, kw_only=True, eq=False)
class ReportData:
    """A task and its methods, the most accurate first."""

    title: str
    task: Task | None
    methods: tuple[MethodRuns, ...]

    @property
    def runs(self) -> list[RunResult]:
        """Of all methods."""
        return [run for method in self.methods for run in method.runs]

    @property
    def stamp(self) -> str:
        """What every output says; no file can take it away."""
        return _PLANNED if not self.runs else weakest_stamp(run.stamp for run in self.runs)

    @property
    def is_simulation(self) -> bool:
        """Whether cohorts and clipping are known, and runs can be made again: in a deployment nobody knows."""
        return self.stamp == STAMP

    @property
    def headline(self) -> MethodRuns:
        """The most accurate method with privacy, finished before unfinished; one without only if there is no other."""
        if not self.runs:
            return self.methods[0]
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
        """What ran, each combination once; of a plan alone, what made the report."""
        if not self.runs:
            return [f"gdpfed {gdpfed.__version__}"]
        return list(dict.fromkeys(", ".join(map(" ".join, run.versions)) for run in self.runs))
