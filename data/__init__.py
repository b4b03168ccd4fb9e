"""From text files to batches of token ids. This folder imports only configs/ and model/system/."""
