"""The loop on a live cluster: engines, journal, leadership, web page, and a policy that may fail."""
