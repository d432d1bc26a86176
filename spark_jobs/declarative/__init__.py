"""Loads Spark Declarative Pipelines projects as pipelines."""
