"""Network, optimizers, loss, sampling, checkpoints. Imports configs/, and networks/ by name."""
