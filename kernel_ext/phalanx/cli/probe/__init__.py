"""Ask hosts by a script that any Python of theirs runs."""
