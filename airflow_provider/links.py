"""Links from a task to its checkpoint's manifest, its driver's log and its tables.

A link leads to a page of Airflow's own server (:mod:`airflow_provider.plugin`) and names only the task instance. The page finds the home
in the XCom that the task has recorded.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar
from urllib.parse import quote

from airflow.sdk import BaseOperatorLink

from airflow_provider.tasks.identity import TaskIdentity
from airflow_provider.version_compat import conf

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator, Context
    from airflow.sdk.types import TaskInstanceKey

URL_PREFIX = "/stream-pipelines"
RECORD_KEY = "stream_pipeline"
"""The key of the XCom in which a task records the homes of its pipelines."""


class _PageLink(BaseOperatorLink):
    page: ClassVar[str]

    @property
    def name(self) -> str:
        return self.page.replace("-", " ").capitalize()

    def get_link(self, operator: "BaseOperator", *, ti_key: "TaskInstanceKey") -> str:
        """Returns the URL of the page. It is relative to Airflow's pages if this host has no ``[api] base_url``."""
        return _url(ti_key, self.page)


class ManifestLink(_PageLink):
    """Shows the manifest of the task's checkpoint."""

    page = "manifest"


class DriverLogLink(_PageLink):
    """Shows the last lines of the driver's log."""

    page = "driver-log"


class TablesLink(_PageLink):
    """Shows the task's tables with their Delta versions and rows."""

    page = "tables"


LINKS = (ManifestLink(), DriverLogLink(), TablesLink())


def record_homes(context: "Context", conn_id: str, homes: Mapping[str, int | None]) -> None:
    """Records the homes of a task's pipelines, and shows the task's links from now on, deferred or not.

    Args:
        context: The context of the task's execution.
        conn_id: The connection whose roots allow the homes.
        homes: By URL of the home, the checkpoint that the task works on; None: the checkpoint of its own run.
    """
    task = context["ti"]
    task.xcom_push(RECORD_KEY, {"conn_id": conn_id, "homes": dict(homes)})
    for link in LINKS:
        task.xcom_push(link.xcom_key, _url(task, link.page))


def _url(task: TaskIdentity, page: str) -> str:
    index = -1 if task.map_index is None else task.map_index
    names = (quote(name, safe=":+") for name in (task.dag_id, task.run_id, task.task_id))
    path = "{}/dags/{}/runs/{}/tasks/{}/{}/{}".format(URL_PREFIX.lstrip("/"), *names, index, page)
    base = conf.get("api", "base_url", fallback=None)
    return f"{base.rstrip('/')}/{path}" if base else path
