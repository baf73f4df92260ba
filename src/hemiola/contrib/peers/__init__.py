"""What published simulators do, so that their known answers can be checked."""
