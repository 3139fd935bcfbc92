"""Connect to the root supervisor and to the ranks' kernels."""
