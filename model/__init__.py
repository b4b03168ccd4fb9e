"""The network, its optimizers, sampling, checkpoints. Imports its folders run/ and fast/ only."""
