"""Check what ranks need on hosts, and name the fixes."""
