"""Text to ids: the tokenizer, the corpus and its batches, and Tiny Shakespeare."""
