"""The machine: devices, processes, files, errors, logs. No mathematics of the network.

May be imported everywhere. Imports nothing else of this repository.
"""
