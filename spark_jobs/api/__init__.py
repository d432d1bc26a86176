"""The declarations of a pipeline: sources, stages, sinks and parameters. This package does not import Spark and writes no files."""
