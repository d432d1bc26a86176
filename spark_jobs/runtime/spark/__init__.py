"""Spark as it is: its session, its plans, its logs of offsets and commits. Nothing here knows a pipeline."""
