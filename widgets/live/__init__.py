"""Show live widgets in the notebook."""
