"""Settings, flags, the recipe. Imports no other folder."""
