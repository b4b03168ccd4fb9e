"""The network and what surrounds it: optimizers, sampling, checkpoints, devices."""
