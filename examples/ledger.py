"""Several trainings on the same people: a ledger knows what each has spent, and refuses what a budget does not allow.

    python examples/ledger.py

Writes a ledger and the runs' folders into the current folder.
"""

from pathlib import Path

import torch

import gdpfed
from gdpfed.ledger.verify import verify_ledger
from gdpfed.privacy.rounding import rounded_up

# What people allow over all runs together: 300 of them epsilon 1.2, 300 of them 4.8.
with gdpfed.Ledger.create("people.ledger") as ledger:
    ledger.add_population("people", gdpfed.parse_compact("300@1.2,300@4.8"), default_delta=1e-4)

generator = torch.Generator().manual_seed(1)
inputs = torch.randn(600, 8, 20, generator=generator)
labels = (inputs.sum(2) > 0).long()


def train(name: str, budgets: str) -> None:
    """A run in a folder; every round of it is charged to the ledger before anything is released."""
    gdpfed.train(
        model=torch.nn.Linear(20, 2),
        clients=list(zip(inputs, labels, strict=True)),
        budgets=gdpfed.parse_compact(budgets),
        settings=gdpfed.PlanSettings(num_rounds=4, participation=0.1, delta=1e-4),
        seed=1,
        folder=name,
        ledger="people.ledger",
    )
    ledger = gdpfed.Ledger.read("people.ledger")
    for group, epsilon in ledger.spent_by_group(ledger.state.run(name)).items():
        print(f"{name}: in {group}, {rounded_up(epsilon, 3)} is the most that anybody has spent over all runs")


train("first", "300@1,300@4")
try:
    train("second", "300@1,300@4")
except gdpfed.PrivacyError as refusal:
    print(f"second: {refusal}")
else:
    raise SystemExit("the second run was let in, and should not have been")
# A run that asks for less still fits: 1 and 0.5 are together less than 1.2, since epsilons do not simply add up.
train("third", "300@0.5,300@2")
verify_ledger(Path("people.ledger"))
