"""Tests that need Airflow's real scheduler, triggerer and workers. They control a running Airflow over its REST API."""
