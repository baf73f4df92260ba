"""A Slurm that is spoken to over HTTP (slurmrestd)."""
