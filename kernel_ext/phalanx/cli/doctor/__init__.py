"""Check what ranks need on hosts, and say how to fix what is missing."""
