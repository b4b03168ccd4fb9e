"""Random numbers that depend on nothing but a key."""

import random

import numpy as np
import torch


def seed_all(*key: int) -> None:
    """Make the random numbers that torch, NumPy and Python draw next a function of `key`."""
    sequence = np.random.SeedSequence(key[0], spawn_key=key[1:])
    seed = int(sequence.generate_state(1, np.uint64)[0])
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)
