"""How far a batch of runs is, and what is left: bars on a terminal, lines elsewhere.

Place: the outermost layer, between `gdpfed_reproduce.batch` and whoever waits. `Tracker` only counts; `showing` prints.
"""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from gdpfed.cli.show import console
from gdpfed_reproduce.batch import Event, PlannedJob, finished_seconds
from gdpfed_reproduce.estimate import Cost, Estimate, cost_of, estimate, in_words, similarity

__all__ = ["Tracker", "estimate_in_words", "showing"]

# So many rounds are timed before an estimate is made of them.
_TIMED_ROUNDS = 3
# Seconds without a line about a run, where there are no bars, after which its next round says how far it is.
_SILENCE = 300.0


def estimate_in_words(made: Estimate, *, basis: str) -> str:
    """What is expected, and on what grounds."""
    if not made.num_known:
        return "no similar run is finished: the time is estimated when the first rounds are timed"
    text = f"about {in_words(made.seconds)}, from {made.num_finished} similar finished runs {basis}".strip()
    if made.num_unknown:
        text += f", and {made.num_unknown} runs of kinds not timed yet"
    return text


class Tracker:
    """Counts what events tell, and estimates what is left: of each kind by runs that finished in this batch, else by
    those that finished before, else by rounds."""

    def __init__(self, jobs: Sequence[PlannedJob], costs: Sequence[Cost], *, num_cores: int, threads_each: int) -> None:
        self.jobs = jobs
        self.total = len(jobs)
        self.left = {place: 1.0 for place, job in enumerate(jobs) if job.state != "finished"}
        self.done = self.total - len(self.left)
        self._costs = list(costs)
        self._finished: list[Cost] = []
        self._rounds: dict[object, list[Cost]] = {}
        self._num_cores = num_cores
        self._threads_each = threads_each

    def note(self, event: Event) -> None:
        """Takes in what happened."""
        job = self.jobs[event.place]
        if event.kind == "round":
            rounds = job.task.settings.num_rounds
            self.left[event.place] = 1 - event.rounds / rounds
            timed = cost_of(job.task, event.seconds * self._threads_each * rounds)
            self._rounds.setdefault(similarity(job.task), []).append(timed)
        elif event.kind == "finished":
            self.left.pop(event.place, None)
            self.done += 1
            seconds = finished_seconds(job.folder)
            if seconds is not None:
                self._finished.append(cost_of(job.task, seconds))

    def expected(self) -> Estimate:
        """The time for what is left."""
        finished = {cost.similarity for cost in self._finished}
        costs = [*self._finished, *(cost for cost in self._costs if cost.similarity not in finished)]
        known = {cost.similarity for cost in costs}
        # The first round of a process is slower than the others: it is timed, and the median leaves it out.
        timed = [
            cost
            for kind, rounds in self._rounds.items()
            if kind not in known and len(rounds) >= _TIMED_ROUNDS
            for cost in rounds
        ]
        left = [(self.jobs[place].task, fraction) for place, fraction in self.left.items()]
        busy = min(self._num_cores, max(1, len(left)) * self._threads_each)
        return estimate(left, [*costs, *timed], num_cores=busy)

    def time_left(self) -> str:
        """In words; with a plus where something is not known yet."""
        made = self.expected()
        if not made.num_known:
            return "time left not known yet"
        return f"about {in_words(made.seconds)}{'+' if made.num_unknown else ''} left"


def _described(job: PlannedJob) -> str:
    weights = f", {job.task.settings.weights}" if job.task.settings.weights else ""
    purpose = f"{job.purpose}, " if job.purpose else ""
    return f"{job.task.title}, {purpose}{job.task.settings.method}{weights}, seed {job.seed}"


@contextmanager
def showing(tracker: Tracker, *, quiet: bool) -> Iterator[Callable[[Event], None]]:
    """Hands out what is to be called with every event."""
    if quiet:
        yield tracker.note
    elif sys.stdout.isatty():
        with _bars(tracker) as show:
            yield show
    else:
        yield _lines(tracker)


def _lines(tracker: Tracker, *, clock: Callable[[], float] = time.perf_counter) -> Callable[[Event], None]:
    begun: dict[int, float] = {}
    said: dict[int, float] = {}
    unknown = not tracker.expected().num_known

    def show(event: Event) -> None:
        nonlocal unknown
        tracker.note(event)
        line = ""
        if event.kind == "started":
            begun[event.place] = said[event.place] = clock()
        elif event.kind == "waiting":
            line = f"{_described(tracker.jobs[event.place])}: another process trains it; waiting"
        elif event.kind == "round" and unknown and tracker.expected().num_known:
            unknown = False
            line = f"{tracker.time_left()}, from the first {_TIMED_ROUNDS} rounds"
        elif event.kind == "round" and clock() > said.setdefault(event.place, clock()) + _SILENCE:
            job = tracker.jobs[event.place]
            line = f"{_described(job)}: round {event.rounds} of {job.task.settings.num_rounds}; {tracker.time_left()}"
        elif event.kind == "finished":
            took = f", {clock() - begun[event.place]:.0f} s" if event.place in begun else ""
            left = f"; {tracker.time_left()}" if tracker.left else ""
            described = _described(tracker.jobs[event.place])
            line = f"{tracker.done} of {tracker.total} runs done: {described}{took}{left}"
        if line:
            said[event.place] = clock()
            sys.stdout.write(line + "\n")
            sys.stdout.flush()

    return show


@contextmanager
def _bars(tracker: Tracker) -> Iterator[Callable[[Event], None]]:
    from rich.progress import BarColumn, Progress, TaskID, TextColumn

    with Progress(BarColumn(bar_width=20), TextColumn("{task.description}"), console=console()) as bars:
        overall = bars.add_task("starting", total=tracker.total)
        current: dict[int, TaskID] = {}

        def show(event: Event) -> None:
            tracker.note(event)
            job = tracker.jobs[event.place]
            rounds = job.task.settings.num_rounds
            if event.kind == "finished":
                if event.place in current:
                    bars.remove_task(current.pop(event.place))
            else:
                if event.place not in current:
                    current[event.place] = bars.add_task("", total=rounds)
                state = "waits for another process" if event.kind == "waiting" else f"round {event.rounds}/{rounds}"
                bars.update(current[event.place], completed=event.rounds, description=f"{_described(job)}: {state}")
            whole = tracker.total - sum(tracker.left.values())
            bars.update(
                overall,
                completed=whole,
                description=f"{tracker.done} of {tracker.total} runs done, {tracker.time_left()}",
            )

        yield show
