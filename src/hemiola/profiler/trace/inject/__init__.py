"""A folder that `hemiola trace` puts on PYTHONPATH, so that Python itself starts the recording."""
