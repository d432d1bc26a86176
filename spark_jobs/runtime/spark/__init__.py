"""Access to Spark: its session, its plans, and its offset and commit logs. This package does not know pipelines."""
