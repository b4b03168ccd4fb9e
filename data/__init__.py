"""From text files to batches of token ids. Imports the errors and files of model/system only."""
