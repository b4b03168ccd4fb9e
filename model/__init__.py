"""The network and everything around it: attention, GPT, optimizers, sampling, checkpoints, devices."""
