"""What surrounds the training loop: settings, directory, checkpoints, evaluations, logs."""
