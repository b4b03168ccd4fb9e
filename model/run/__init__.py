"""The machine: devices, processes, files, errors, logs. It changes no number that is computed.

May be imported everywhere. Imports nothing else of this repository.
"""
