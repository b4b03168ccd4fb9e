"""The machine: devices, processes, signals, files, errors. Imports settings only."""
