"""The network and what surrounds it: attention, GPT, optimiser, generation, checkpoints, runtime."""
