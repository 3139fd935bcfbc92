"""Joining a world, the group and its collectives."""
