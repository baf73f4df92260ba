"""Schedules carried out: one rank's moves of a collective, over the transport."""
