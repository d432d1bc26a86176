"""Runs a pipeline on Spark: stages, staging, the end of bounded inputs, the final checkpoint."""
