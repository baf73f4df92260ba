"""Three published simulators' ways of passing time, so that their known answers can be reproduced."""
