"""What a session has to have; no session is started."""

from spark_jobs.api.refusals import Place
from spark_jobs.api.settings import check_settings
from spark_jobs.protocol.errors import InvalidPipelineError
from spark_jobs.runtime.spark.session import REQUIRED_SETTINGS


def test_no_setting_that_a_guarantee_needs_can_be_given_by_a_user() -> None:
    accepted = []
    for key, value in REQUIRED_SETTINGS.items():
        try:
            check_settings(Place("flights"), {key: value})
        except InvalidPipelineError:
            continue
        accepted.append(key)
    assert accepted == []
