"""The machine: devices, processes, files, errors, signals. Of Quill, it imports settings only."""
