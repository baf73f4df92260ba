"""The laws of a simulated cluster: events in order, links shared, chance from a seed."""
