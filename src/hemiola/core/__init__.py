"""Values: what everything else speaks about. Imports nothing of Hemiola above it."""
