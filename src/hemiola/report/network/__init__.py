"""A network and what is sent over it, as people look at them: topologies, and schedules of collectives."""
