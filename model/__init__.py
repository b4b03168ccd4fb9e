"""Network, optimizers, sampling, checkpoints. Imports run/ and fast/, and networks/ by name."""
