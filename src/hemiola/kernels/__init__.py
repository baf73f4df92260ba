"""Compiled kernels: the shared network, the iteration executor; and workloads made from a seed."""
