"""Settings, what comes before the first step, and reports. Imports model/ and data/."""
