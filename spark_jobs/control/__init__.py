"""Requests, responses and status: all that the Airflow side and the command line touch while a driver runs."""
