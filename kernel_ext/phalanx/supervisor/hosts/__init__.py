"""Supervise the local and the remote hosts of a world."""
