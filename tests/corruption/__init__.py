"""Documents whose contents have changed since they were written."""
