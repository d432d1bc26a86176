"""Pages of Airflow's API server. Nothing that a worker, a triggerer or a DAG file needs imports this package."""
