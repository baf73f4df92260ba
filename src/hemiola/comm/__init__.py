"""What ranks of a job say to each other: transport, process group, collective schedules, stragglers, link probe."""
