"""Accelerators of the network. Imports model/run; only model/generate.py imports them."""
