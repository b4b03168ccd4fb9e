"""From text files to batches of token ids. Imports configs/; of model/, files and terminal only."""
