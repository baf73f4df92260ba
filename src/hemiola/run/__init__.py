"""Hands inside a training job: capture, record, calibrate. PyTorch is imported only when they are used."""
