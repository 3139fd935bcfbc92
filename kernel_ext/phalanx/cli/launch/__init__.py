"""`phalanx launch`: start the ranks of a script and show their output."""
