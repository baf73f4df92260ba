"""Whole clusters on traces: the simulated driver, scenarios, sweeps."""
