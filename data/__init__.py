"""Text to token ids: the tokenizer, the corpus and its batches, Tiny Shakespeare."""
