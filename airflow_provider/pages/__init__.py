"""The pages in Airflow's API server. No worker, triggerer or DAG file imports this package."""
