"""Hands on a cluster: the loop, and the drivers that carry out its decisions."""
