"""Fit debuggers to a rank: pdb, IPython's, and JupyterLab's panel."""
