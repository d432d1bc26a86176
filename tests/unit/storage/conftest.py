"""Fixtures for processes that have the settings of object stores."""

import pytest

from spark_jobs.storage import settings_by_bucket


@pytest.fixture
def no_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that has no settings of an Airflow connection."""
    monkeypatch.setattr(settings_by_bucket, "_settings_by_name", {})
    monkeypatch.setattr(settings_by_bucket, "_names_by_bucket", {})


@pytest.fixture
def another_store(no_connections: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that has no settings of an Airflow connection, and whose environment names another store."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", "https://environment.example.com")
