"""The attention page: records a network, and writes it into an HTML file."""
