"""Secure aggregation: the server sees sums of integers, with noise that is enough when clients vanish or collude."""
