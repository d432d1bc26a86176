"""Checkpoints of a pipeline at work: when one is taken, where it cuts each stage, what it makes durable and what it lets go."""
