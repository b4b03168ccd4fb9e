"""Settings: the typed config, from the defaults of dataclasses, a TOML preset, and flags.

schema.py turns dataclasses into flags and TOML keys; training.py is the config of a run. Imports
model/ and data/, whose dataclasses stand beside what they configure.
"""
