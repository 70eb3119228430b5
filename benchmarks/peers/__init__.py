"""The contestants of `benchmarks/simulators.py`, one script each, and the work they share."""
