"""Find how hosts are connected, and set up their cables."""
