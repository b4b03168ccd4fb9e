"""One network per file, complete. Imports model/, no other network."""
