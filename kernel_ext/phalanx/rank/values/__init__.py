"""Move values between processes: calls, pull, push, copies of variables."""
