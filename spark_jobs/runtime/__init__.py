"""Runs a pipeline on Spark: an attempt from its start request to its answer (``application``), with a room for each thing that takes."""
