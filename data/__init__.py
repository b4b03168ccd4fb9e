"""Everything between text files and batches of token ids.

Of this repository, it may import only the errors and file helpers in model/run.
"""
