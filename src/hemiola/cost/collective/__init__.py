"""How long collectives take, and what no schedule beats."""
