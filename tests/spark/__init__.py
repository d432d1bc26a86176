"""Runs whole pipelines on a real Spark, and compares their results with answers computed without the product's code."""
