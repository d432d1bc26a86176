"""Runs and waits for Spark streaming pipelines from Airflow. Knows a pipeline by its home only; needs no Spark where it runs."""
