"""Runs a pipeline on Spark: ``application`` runs an attempt from its start request to its answer, with a subpackage for each part."""
