"""View arrays of numpy and other frameworks for operations."""
