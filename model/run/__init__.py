"""What a training run needs beside its loop: settings, checkpoints, progress, a log."""
