"""The cluster's brain: a state machine, a view of it, and policies that decide from the view."""
