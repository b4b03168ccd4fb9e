"""From text files to batches of token ids. Of model/, imports errors, files, terminal only."""
