"""Several trainings on the same people: a ledger knows what each has spent, and refuses what a budget does not allow.

    python examples/ledger.py

Writes a ledger and the runs' folders into the current folder.
"""

from pathlib import Path

import gdpfed
from gdpfed.ledger.book import Ledger
from gdpfed.ledger.verify import verify_ledger
from gdpfed.runs.folder import create_run
from gdpfed.runs.ledgered import LedgerLink
from gdpfed.runs.simulate import simulate

# What people allow over all runs together: 600 of them epsilon 1.2, 600 of them 4.8.
with Ledger.create(Path("people.ledger")) as ledger:
    ledger.add_population("people", gdpfed.parse_compact("600@1.2,600@4.8"), default_delta=1e-4)

TASK = """\
title = "Several trainings, one budget"
budgets = "BUDGETS"
num_rounds = 4
participation = 0.01
delta = 1e-4

[training]
dataset = "fmnist-mini"
evaluate_every = 4
"""


def train(name: str, budgets: str) -> None:
    """A run in a folder; every round of it is charged to the ledger before anything is released."""
    Path("task.toml").write_text(TASK.replace("BUDGETS", budgets))
    task = gdpfed.load_task("task.toml")
    link = LedgerLink(path=Path("people.ledger").absolute(), population="people", run=name)
    run = create_run(Path(name), task=task, plan=gdpfed.make_plan(task.budgets, task.settings), seed=1, ledger=link)
    simulate(run, num_workers=1)
    ledger = Ledger.read("people.ledger")
    for group, epsilon in ledger.spent_by_group(ledger.state.run(name)).items():
        print(f"{name}: in {group}, {epsilon:.3f} is the most that anybody has spent over all runs")


train("first", "600@1,600@4")
try:
    train("second", "600@1,600@4")
except gdpfed.PrivacyError as refusal:
    print(f"second: {refusal}")
else:
    raise SystemExit("the second run was let in, and should not have been")
# A run that asks for less still fits: 1 and 0.5 are together less than 1.2, since epsilons do not simply add up.
train("third", "600@0.5,600@2")
verify_ledger(Path("people.ledger"))
