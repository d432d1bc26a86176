"""The Airflow side: its parts against a driver that is a small script, and the example DAGs against real ones."""
