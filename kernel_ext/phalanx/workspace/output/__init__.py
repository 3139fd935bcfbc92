"""Show users the output of their ranks, with notices."""
