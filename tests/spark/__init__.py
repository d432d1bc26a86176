"""Results of whole pipelines on a real Spark, against answers that are computed without any of our code."""
