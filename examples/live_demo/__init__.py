"""The parts of `examples/demo_live.py`: a stream of training jobs on a real Slurm, under two schedulers."""
