"""One training job's timeline in figures."""
