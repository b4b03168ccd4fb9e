"""Accelerators of the network. Imports it and model/run; only model/generate.py imports them."""
