"""The machine: devices, processes, files, errors, logs. Imports no other folder."""
