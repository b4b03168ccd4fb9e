"""The machine: devices, processes, files, errors, logs. Imported everywhere, imports nothing."""
