"""A node of a deployment: its home, what it answers, what it spent, what it remembers between messages."""
