"""Join a world: through a supervisor, under mpirun, or alone."""
