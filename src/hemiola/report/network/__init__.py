"""A network and what is sent over it, as people look at them: topologies, and strategies of collectives."""
