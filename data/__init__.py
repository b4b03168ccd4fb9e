"""From text files to batches of token ids. Imports configs/ and model/system/ only."""
