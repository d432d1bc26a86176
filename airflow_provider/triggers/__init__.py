"""The triggers, which wait in Airflow's triggerer instead of a worker."""
