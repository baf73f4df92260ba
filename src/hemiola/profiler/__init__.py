"""What a job does and how fast this machine is: trace, capture, calibrate. PyTorch is imported only when they are used."""
