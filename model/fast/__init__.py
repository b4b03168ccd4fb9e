"""Accelerators, each used only while the code that it stands in for is what it was proven against.

Imports the network and run/. Only model/generate.py imports it.
"""
