"""Settings: dataclasses, presets and flags as one typed config. Imports model/ and data/."""
