"""Manage child processes, their standard streams, and their end."""
