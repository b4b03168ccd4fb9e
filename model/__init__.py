"""What is computed: the network, its optimizers, sampling, checkpoints.

Of its rooms, run/ and fast/ may be imported here; inspect/ looks at the network from outside.
"""
