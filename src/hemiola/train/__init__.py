"""What a training script calls: accelerate, parameter servers, elastic membership, launch."""
