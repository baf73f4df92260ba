"""Schedules for the network that is there: trees that load each link as it can bear, rings, and the choice."""
