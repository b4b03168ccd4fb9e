"""Network, optimizers, sampling, checkpoints. Imports system/, and networks/ by name."""
