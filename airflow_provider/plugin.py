"""The plugin: pages of Airflow's API server about the pipelines that tasks have run."""

from functools import cached_property
from typing import Any

from airflow_provider.links import URL_PREFIX
from airflow_provider.version_compat import AirflowPlugin


class StreamPipelinesPlugin(AirflowPlugin):
    """Found by the entry point ``airflow.plugins``. Every process of Airflow makes one; only its API server asks for the pages."""

    name = "stream_pipelines"

    @cached_property
    def fastapi_apps(self) -> list[Any]:  # type: ignore[override]
        """The pages, where they are served: no worker imports what they need."""
        from airflow_provider.pages.app import make_app

        return [{"app": make_app(), "url_prefix": URL_PREFIX, "name": "Stream pipelines"}]
