"""The plugin that adds the provider's pages to Airflow's API server."""

from functools import cached_property
from typing import Any

from airflow_provider.links import URL_PREFIX
from airflow_provider.version_compat import AirflowPlugin

_PAGES = URL_PREFIX.lstrip("/")


class StreamPipelinesPlugin(AirflowPlugin):
    """The plugin, found through the entry point ``airflow.plugins``.

    Every Airflow process creates it; only the API server uses its pages.
    """

    name = "stream_pipelines"
    external_views = [  # noqa: RUF012  # as Airflow declares it
        {"name": "Pipelines", "href": f"{_PAGES}/pipelines", "destination": "nav", "category": "browse"},
        {
            "name": "Pipelines",
            "href": f"{_PAGES}/pipelines?dag_id={{DAG_ID}}",
            "destination": "dag",
            "url_route": "stream-pipelines-of-dag",
        },
        {
            "name": "Pipelines",
            "href": f"{_PAGES}/pipelines?dag_id={{DAG_ID}}",
            "destination": "task_instance",
            "url_route": "stream-pipelines-of-task",
        },
    ]
    """The pipelines page, as an entry of the navigation and as tabs of DAGs and task instances."""

    @cached_property
    def fastapi_apps(self) -> list[Any]:  # type: ignore[override]
        """The app with the pages. It is imported only where it is served, so no worker imports a web framework."""
        from airflow_provider.pages.app import make_app

        return [{"app": make_app(), "url_prefix": URL_PREFIX, "name": "Stream pipelines"}]
