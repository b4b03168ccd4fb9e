"""The machine: devices, processes, files, errors, logs. Imports configs/ only."""
