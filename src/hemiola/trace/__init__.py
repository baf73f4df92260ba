"""Files in and out: workloads, topologies, timelines, results."""
