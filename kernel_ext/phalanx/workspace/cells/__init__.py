"""Run cells: send, wait, prompt, stop and attach."""
