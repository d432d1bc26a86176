"""Shared terms, documents, errors and step names. This package does not access files, Spark or Airflow."""
