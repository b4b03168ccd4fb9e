"""One network per file, complete. Imports model.network and model.attention, no other network."""
