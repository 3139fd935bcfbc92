"""Send, record and capture what a rank shows: text, displays, widgets, errors."""
