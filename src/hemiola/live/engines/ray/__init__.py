"""Ray as an engine: Hemiola places, Ray runs."""
