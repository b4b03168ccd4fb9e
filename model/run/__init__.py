"""Everything around the training loop: settings, directory, checkpoints, evaluations, logs."""
