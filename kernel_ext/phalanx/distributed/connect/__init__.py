"""Connect ranks: listen, dial, prove identity, choose paths."""
