"""What the links between hosts give right now, measured by sending."""
