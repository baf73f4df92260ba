"""Slurm as an engine: Hemiola places, Slurm runs."""
