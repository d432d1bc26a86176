"""Tasks whose drivers run in a cluster."""

import threading
from collections.abc import Callable
from typing import Any

from airflow_provider.operators.stream_pipeline import StreamPipelineOperator
from tests.support import small_pipeline
from tests.support.run_site import SMALL, RunSite
from tests.support.short_jvm import SHORT_RUN

DEADLINE_S = 150.0
CONF = {
    "spark.ui.enabled": "false",
    "spark.driver.memory": "1g",
    "spark.executor.memory": "512m",
    "spark.executor.cores": "1",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    **SMALL,
    **SHORT_RUN,
}


def task(site: RunSite, **arguments: Any) -> StreamPipelineOperator:
    given: dict[str, Any] = {
        "poll_interval_s": 0.2,
        "max_poll_interval_s": 0.5,
        "timeout_s": 180.0,
        "parameters": site.parameters,
    }
    return StreamPipelineOperator(task_id="run", entry=small_pipeline.__file__, home="home", **(given | arguments))


def when(condition: Callable[[], object], action: Callable[[], object] = lambda: None) -> threading.Thread:
    """Calls ``action`` in another thread once the condition holds."""

    def act() -> None:
        pause = threading.Event()
        for _ in range(int(DEADLINE_S / 0.05)):
            if condition():
                action()
                return
            pause.wait(0.05)

    thread = threading.Thread(target=act)
    thread.start()
    return thread
