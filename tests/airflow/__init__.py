"""Tests of the Airflow provider: its parts with a small script as the driver, and the example DAGs with real drivers."""
