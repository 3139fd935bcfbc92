"""Build the data that live widgets draw."""
