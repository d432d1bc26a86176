"""Requests, responses and status: the interface of Airflow and the command line to a running driver."""
