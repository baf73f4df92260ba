"""Traces of PyTorch's profiler (Kineto): files, communication, and one timeline of all ranks."""
