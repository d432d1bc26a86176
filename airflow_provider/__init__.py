"""Runs Spark streaming pipelines from Airflow, and waits for them. It knows a pipeline only by its home, and needs no Spark."""
