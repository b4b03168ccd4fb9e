"""Network, optimizers, sampling, checkpoints. Imports run/, and networks/ by name."""
