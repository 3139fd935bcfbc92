"""Groups of ranks: the world's and its splits, and their epochs."""
