"""The engines that Hemiola drives: one folder each."""
