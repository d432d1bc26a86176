"""Everything that needs Airflow's scheduler, triggerer and workers as they are: a running Airflow, driven over its REST API."""
