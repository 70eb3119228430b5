"""A privacy ledger that cannot be overspent: charges are durable before releases, over all runs of a population."""
