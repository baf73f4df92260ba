"""Peers' own simulators and policies, loaded as any module from outside would be."""
