"""Run a rank as ipyparallel's engine, and run ipyparallel's controller."""
