"""Run the root supervisor: start hosts, serve clients, schedule cells and replacements."""
