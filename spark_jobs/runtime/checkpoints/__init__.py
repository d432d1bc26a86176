"""Checkpoints of a running pipeline: their triggers, their cuts, the files that they make durable and those that they delete."""
