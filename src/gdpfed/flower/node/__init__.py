"""A node of a deployment: what it answers, what it spent, what it remembers."""
