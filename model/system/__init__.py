"""The machine: devices, processes, signals, files, the terminal."""
