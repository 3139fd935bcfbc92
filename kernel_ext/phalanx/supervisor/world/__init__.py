"""Keep the state of a world: its ranks, epochs and cells."""
