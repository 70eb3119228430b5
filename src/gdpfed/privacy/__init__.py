"""Budgets, accounting, calibration, adversaries: numpy, scipy and dp-accounting only."""
