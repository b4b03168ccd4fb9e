"""Settings, flags, presets, the recipe, and UserError. This folder imports no other folder."""

import sys

if sys.version_info < (3, 11):
    sys.exit(f"error: Quill needs Python 3.11 or newer; this is {sys.version.split()[0]}")
