"""The loop on a live cluster: journal, leadership, a policy that may fail, and observing instead of acting."""
