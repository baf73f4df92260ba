"""Inference services in the simulated cluster: their requests, at two fidelities, and the life of their replicas."""
