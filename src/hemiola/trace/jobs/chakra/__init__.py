"""Chakra execution traces (MLCommons): read, and written."""
