"""Divide layers of MLX among the ranks."""
