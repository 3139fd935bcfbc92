"""Words and tables for what widgets show."""
