"""Checkpoints of a home: which exist, what each adds to its sinks, and the number of the next one."""
