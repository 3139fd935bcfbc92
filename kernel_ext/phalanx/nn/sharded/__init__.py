"""Divide layers of MLX among the ranks; `phalanx.nn.checkpoints` saves them."""
