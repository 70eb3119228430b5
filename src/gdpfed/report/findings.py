"""Sentences that a report computes: what was found, never what was hoped for.

Place: `ReportData` -> sentences for page and text. Two methods are told apart by their seeds: every seed of one above
every seed of the other, or they overlap. With three seeds each, chance alone does that once in twenty times.

Guarantees (tests of the same name):
  findings_follow_the_numbers   overlap, order and sign are those of the accuracies.
  nobody_guesses_better         than the cards say, who sees what the mechanism releases.
"""

import math

import numpy as np
from scipy import special

from gdpfed.planning.plan import Group, Plan
from gdpfed.privacy.rounding import delta_up, promise, rounded_up
from gdpfed.report.contents import GroupCost, MethodRuns, ReportData

__all__ = [
    "accuracy", "clipping", "cohort_range", "comparison", "conclusions", "convergence", "final", "findings",
    "guessed_right", "headline", "participation", "people", "planned_cohort", "rates", "server", "spending", "spread",
    "waste",
]  # fmt: skip


def accuracy(method: MethodRuns) -> str:
    """Mean and spread: 76.20 ± 0.78."""
    return f"{method.mean:.2f}" if method.std is None else f"{method.mean:.2f} ± {method.std:.2f}"


def headline(data: ReportData) -> str:
    """The report in one sentence."""
    best = data.headline
    if not data.runs:
        return _promised(best.plan)
    reaches = f"{best.label} reaches {best.mean:.1f} % {best.measure}"
    if not best.is_finished:
        done = max(run.rounds_done for run in best.runs)
        return f"{reaches} after {done} of {best.plan.num_rounds} rounds, unfinished"
    if not best.plan.is_private:
        return f"{reaches}, and promises no privacy"
    if all(cost.keeps_promise for cost in best.costs):
        kept = "every group's promise" if len(best.costs) > 1 else "its promise"
        return f"{reaches} and keeps {kept}{', also against the server' if best.plan.is_rotation else ''}"
    return f"{reaches} and breaks a promise"


def _promised(plan: Plan) -> str:
    if not plan.is_private:
        return f"{plan.method} would promise no privacy"
    bounds = list(dict.fromkeys(promise(group.epsilon) for group in plan.groups))
    epsilons = bounds[0] if len(bounds) == 1 else f"{bounds[0]} to {bounds[-1]}"
    against = "whoever sees the models, and the server" if plan.is_rotation else "whoever sees the models"
    return f"{plan.method} would promise {plan.num_clients:,} clients epsilon {epsilons} against {against}"


def guessed_right(epsilon: float, delta: float) -> str:
    """How often whoever thought it 50:50 can be right, in 100 cases: of all tests between two inputs that an epsilon
    and a delta hide, none errs in less than (1 - delta) / (1 + e ** epsilon) of them."""
    return rounded_up(100 * (1 - (1 - delta) / (1 + math.exp(min(epsilon, 700.0)))), 1)


def _concluded(epsilon: float, delta: float) -> str:
    right = guessed_right(epsilon, delta)
    if float(right) > 99.8:
        return f"may be right every time: epsilon {rounded_up(epsilon, 1)} is no bound worth having"
    factor = rounded_up(math.exp(epsilon), 2)
    return f"is right in at most {right} of 100 cases: the odds change by a factor of at most {factor}, but for delta"


def conclusions(plan: Plan, cost: GroupCost) -> list[tuple[str, str]]:
    """What each adversary could conclude about one client of a group, and what nothing here protects."""
    group, view = cost.group, cost.server
    in_one = "" if cost.over_all_runs is None else ", by this run alone"
    if not group.is_private:
        return [("Anybody", "may find out whether a client took part, and with what: nothing is promised.")]
    known = f"that this client is enrolled, that it allows epsilon {promise(group.epsilon)}"
    rest = "and whatever is true of many clients alike, which is what the model learns."
    if plan.is_rotation:
        return [
            (
                "Whoever sees the models, or is the server,",
                f"and thought it 50:50 whether this client's updates are in the sums, or zero in their place, "
                f"{_concluded(cost.most, group.delta)}.",
            ),
            ("Not protected:", f"{known}, when it is asked, {rest}"),
        ]
    return [
        (
            "Whoever sees the models,",
            f"and thought it 50:50 that this client is there, {_concluded(cost.most, group.delta)}.",
        ),
        (
            "The server",
            f"knows when this client took part. If it thought it 50:50 whether the client's updates are in those sums, "
            f"it {_concluded(view.epsilon_p99, group.delta)} (99 in 100 clients{in_one}).",
        ),
        ("Not protected:", f"{known}, against the server how often it took part, {rest}"),
    ]


def people(plan: Plan) -> str:
    """What is promised to a person in several clients."""
    one = plan.person_guarantee
    if one is None:
        return (
            "Nobody was declared to be in several clients. A person who is loses more than any one of them does: the "
            "promises are for one client alone."
        )
    limit = "" if plan.person_epsilon is None else f", within the limit of {promise(plan.person_epsilon)} that was set"
    return (
        f"For {one.unit}: epsilon {rounded_up(one.epsilon)} at delta {delta_up(one.delta)}{limit}, against "
        f"{one.adversary}. Who thought it 50:50 that such a person is there "
        f"{_concluded(max(one.epsilon, plan.person_epsilon or 0.0), one.delta)}."
    )


def comparison(one: MethodRuns, other: MethodRuns) -> str:
    """How far apart two methods end, and whether their seeds agree on it."""
    difference = one.mean - other.mean
    side = "above" if difference >= 0 else "below"
    upper, lower = (one, other) if difference >= 0 else (other, one)
    ends = f"{one.label} ends {abs(difference):.1f} points {side} {other.label}"
    if min(len(one.accuracies), len(other.accuracies)) < 2:
        return f"{ends}; with one seed there is no spread to judge that by."
    if min(upper.accuracies) > max(lower.accuracies):
        return f"{ends}; every seed of {upper.label} is above every seed of {lower.label}."
    return f"{ends}; their seeds overlap."


def findings(data: ReportData) -> list[str]:
    """What stands below the headline: the most accurate method against those that matter."""
    best = data.headline
    sentences = []
    without = [method for method in data.methods if not method.plan.is_private and method is not best]
    if without:
        free = max(without, key=lambda method: method.mean)
        sentences.append(
            f"{free.label}, which promises no privacy, ends at {free.mean:.1f} %: "
            f"{abs(free.mean - best.mean):.1f} points {'above' if free.mean >= best.mean else 'below'} {best.label}."
        )
    strict = _strict(data)[:1]
    others = [method for method in data.rivals if method not in strict]
    return sentences + [comparison(best, method) for method in [*others[:1], *strict]]


def _strict(data: ReportData) -> list[MethodRuns]:
    """What gives everybody the strictest client's privacy, if it is not the headline's."""
    return [method for method in data.rivals if method.plan.method == "dp-fedavg"]


def final(data: ReportData) -> str:
    """How the most accurate private method ends, against the next."""
    best = data.headline
    return comparison(best, data.rivals[0]) if data.rivals else f"{best.label} ends at {accuracy(best)} %."


def spread(data: ReportData) -> str:
    """The method whose seeds differ most."""
    several = [method for method in data.methods if method.std is not None]
    if not several:
        return "One seed of each method: no spread to show."
    most = max(several, key=lambda method: method.std or 0.0)
    return (
        f"Seeds differ most for {most.label}: from {min(most.accuracies):.2f} to {max(most.accuracies):.2f} % "
        f"at the end."
    )


def convergence(data: ReportData) -> str:
    """How soon the most accurate private method has what the next important one ends with."""
    best = data.headline
    other = (_strict(data) or data.rivals or data.methods)[0]
    if other is best:
        return f"{best.label} ends at {accuracy(best)} %."
    for number in best.rounds:
        if best.mean_at(number) >= other.mean and number < other.rounds[-1]:
            return (
                f"By round {number}, {best.label} has the {other.mean:.1f} % that {other.label} has after "
                f"{other.rounds[-1]}."
            )
    return comparison(best, other)


def server(method: MethodRuns) -> str:
    """The group that the server learns most of."""
    costs = [cost for cost in method.costs if cost.group.is_private]
    if not costs:
        return f"{method.label} promises nothing, against nobody."
    plan = method.plan
    if plan.is_rotation:
        return (
            f"One promise holds against both: the server asks every client {plan.num_releases} times in "
            f"{plan.num_rounds} rounds, and does not learn when it trains, {plan.trainings:.3g} times on average."
        )
    worst = max(costs, key=lambda cost: cost.server.epsilon_p99)
    return (
        f"Against the server, 99 in 100 clients of {worst.group.name} stay within epsilon "
        f"{rounded_up(worst.server.epsilon_p99, 2)}; one that takes part as often as it can reaches "
        f"{rounded_up(worst.server.epsilon_max, 2)}."
    )


def waste(data: ReportData) -> str:
    """Budget that grouping leaves unused."""
    if not data.private:
        return "No method promises privacy: there is no budget to waste."
    most = max(data.private, key=lambda method: method.plan.mean_waste)
    if most.plan.mean_waste == 0:
        return "No client's budget is left unused by grouping."
    none = sum(method.plan.mean_waste == 0 for method in data.private)
    rest = f"; {none} of {len(data.private)} methods leave nothing unused" if none else ""
    return (
        f"{most.label} leaves on average epsilon {most.plan.mean_waste:.2f} of each client's budget unused, "
        f"because a group promises what its strictest member asks for{rest}."
    )


def rates(method: MethodRuns) -> str:
    """How unevenly a method asks its groups to take part, and how far their noise differs."""
    groups = method.plan.groups
    if not method.plan.is_private or len(groups) == 1:
        return f"{method.label} treats all clients alike."
    often = max(groups, key=lambda group: group.sampling_rate)
    seldom = min(groups, key=lambda group: group.sampling_rate)
    noise = [group.noise_multiplier for group in groups]
    if often.sampling_rate == seldom.sampling_rate:
        first = f"In {method.label}, all groups take part equally often"
    else:
        ratio = often.sampling_rate / seldom.sampling_rate
        first = f"In {method.label}, clients of {often.name} take part {ratio:.1f} times as often as in {seldom.name}"
    return f"{first}; noise multipliers go from {min(noise):.2f} to {max(noise):.2f}."


def spending(method: MethodRuns) -> str:
    """How much of the budgets the first half of the rounds took."""
    run = method.counted[0]
    half = [record for record in run.records if 2 * record.round_number <= method.plan.num_rounds]
    if not method.plan.is_private or not half:
        return ""
    at = half[-1]
    parts = [
        f"{rounded_up(100 * epsilon / group.epsilon, 0)} % ({group.name})"
        for epsilon, group in zip(at.epsilons, method.plan.groups, strict=True)
    ]
    spender = "the most asked clients" if method.plan.is_rotation else "the released models"
    return f"After round {at.round_number} of {method.plan.num_rounds}, {spender} had spent {', '.join(parts)}."


def planned_cohort(plan: Plan, group: Group) -> float:
    """The mean of what records call a cohort: who takes part, and in a rotation who is asked."""
    return group.asked * group.num_clients if plan.is_rotation else group.expected_cohort


def cohort_range(plan: Plan, group: Group) -> tuple[int, int]:
    """The cohort sizes that Poisson sampling gives in at least 95 of 100 rounds: a binomial count's middle.

    In a rotation those that it asks in all of them.
    """
    if plan.is_rotation:
        asked = planned_cohort(plan, group)
        return math.floor(asked + 1e-9), math.ceil(asked - 1e-9)
    clients, rate = group.num_clients, group.sampling_rate
    reach = 6 * math.sqrt(clients * rate * (1 - rate)) + 6
    first, last = max(0, int(group.expected_cohort - reach)), min(clients, int(group.expected_cohort + reach))
    shares = special.bdtr(np.arange(first, last + 1), clients, rate)
    low, high = first + np.searchsorted(shares, (0.025, 0.975))
    return int(low), int(high)


def participation(method: MethodRuns) -> str:
    """Whether the cohorts are as large as planned."""
    inside = total = 0
    for index, group in enumerate(method.plan.groups):
        low, high = cohort_range(method.plan, group)
        sizes = [record.cohort[index] for run in method.runs for record in run.records]
        inside += sum(low <= size <= high for size in sizes)
        total += len(sizes)
    if method.plan.is_rotation:
        return (
            f"In {inside} of {total} recorded rounds of a group {method.label} asked as many clients as planned; how "
            f"many of them trained, no record tells."
        )
    return (
        f"{inside} of {total} recorded cohorts of {method.label} ({100 * inside / total:.0f} %) are where Poisson "
        f"sampling at the planned rates puts at least 95 %."
    )


def clipping(data: ReportData) -> str:
    """How often the clip norm mattered, in the recorded rounds."""
    dropped = sum(record.dropped or 0 for run in data.runs for record in run.records)
    lost = f" {dropped} updates were not finite, and counted as zero." if dropped else ""
    if not data.private:
        return "Nothing is clipped without privacy." + lost
    known = [(method.clipped_share, method) for method in data.private if method.clipped_share is not None]
    if not known:
        if all(method.plan.is_rotation for method in data.private):
            return "How many updates were clipped is not recorded: it would tell how many clients trained." + lost
        return "How many updates were clipped is not known." + lost
    share, most = max(known, key=lambda pair: pair[0])
    if share == 0:
        return "No update of the recorded rounds was longer than the clip norm." + lost
    return (
        f"{most.label} clipped most: {100 * share:.2f} % of the updates of its recorded rounds "
        f"(clip norm {promise(most.plan.clip_norm)})." + lost
    )
