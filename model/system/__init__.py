"""The machine: devices, processes, signals, files and errors. This folder imports only settings."""
