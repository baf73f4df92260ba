"""Traces of training jobs as files: PyTorch's, Chakra's, Perfetto's and Hemiola's own."""
