"""The hook."""

from airflow_provider.hooks.stream_pipeline import StreamPipelineHook
from tests.airflow.conftest import Homes


def test_x(homes: Homes) -> None:
    hook = StreamPipelineHook()
    assert hook.settings.roots == (str(homes.root),)
    print(hook.test_connection())
