"""Whole runs: prepare, train round by round, record, resume."""
