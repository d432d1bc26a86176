"""Text of others in the log of tasks and triggers."""

import importlib
from datetime import UTC, datetime
from inspect import isclass

import pytest
from airflow.sdk import BaseOperator
from airflow.triggers.base import BaseTrigger

from airflow_provider.exceptions import PipelineRunError
from airflow_provider.facts import log_result, run_facts
from airflow_provider.get_provider_info import get_provider_info
from airflow_provider.task_log import LogsVisibly, VisibleLog
from spark_jobs.protocol.documents import BlockedPublication, ErrorReport, StartResponse, TidiedInput
from spark_jobs.protocol.errors import CorruptDocumentError, StreamPipelineError
from spark_jobs.protocol.ids import CheckpointId, InputName, LossId, RoundNumber, SinkName, StageName
from spark_jobs.protocol.losses import LostFile, LostFiles
from spark_jobs.waits.progress import doing
from tests.airflow.conftest import Homes
from tests.airflow.deferral import carry_out
from tests.airflow.flights import TaskLog, context, once, operator
from tests.support.documents import SAMPLES
from tests.support.heartbeats import status
from tests.support.hostile import HOSTILE, is_shown
from tests.support.staged_pipeline import a_manifest

BLOCKED = BlockedPublication(
    checkpoint=CheckpointId(1),
    since=datetime(2026, 1, 1, tzinfo=UTC),
    tries=1,
    waiting=(SinkName("daily"),),
    error=ErrorReport(error="StorageError", retry="never", failed=HOSTILE, remedy=HOSTILE),
)


@pytest.mark.parametrize("deferrable", [True, False], ids=["deferred", "in the worker"])
def test_the_heartbeat_and_error_of_a_failing_driver_are_logged_as_escaped_text(
    homes: Homes, monkeypatch: pytest.MonkeyPatch, *, deferrable: bool
) -> None:
    log = TaskLog()
    monkeypatch.setattr(BaseOperator, "log", log)
    monkeypatch.setattr(BaseTrigger, "log", log)
    seen = once(lambda: "stage hourly: running" in log.text, (homes.path() / ".go").touch)
    with pytest.raises(PipelineRunError) as failed:
        carry_out(operator("hostile", deferrable=deferrable), context())
    seen.join()
    assert is_shown(log.text)
    error: BaseException | None = failed.value
    while error is not None:  # Airflow writes all of them into the task's log
        assert is_shown(str(error))
        error = error.__cause__
    assert failed.value.error.failed == HOSTILE


def test_a_result_with_losses_and_a_blocked_publication_is_logged_as_escaped_text() -> None:
    log = TaskLog()
    lost = LostFiles(id=LossId("7-1"), input=InputName("rows"), stage=StageName("copy"), files=(LostFile(path=HOSTILE, rows=3),))
    (answer,) = (sample for sample in SAMPLES if isinstance(sample, StartResponse))
    manifest = a_manifest(1).model_copy(update={"losses": (lost,)})
    tidied = TidiedInput(
        round=RoundNumber(7), input=InputName("rows"), tidied_at=datetime(2026, 1, 1, tzinfo=UTC), left=(HOSTILE,)
    )
    facts = run_facts("home", answer.model_copy(update={"blocked": BLOCKED}), manifest, {InputName("rows"): tidied})
    log_result(VisibleLog(log), facts, answer.run)
    for part in ("Publication is blocked", "Loss 7-1", "files have changed"):
        assert part in log.text
    assert is_shown(log.text)


def test_the_activity_of_an_attempt_is_logged_as_escaped_text() -> None:
    log = TaskLog()
    VisibleLog(log).info(doing(status().model_copy(update={"blocked": BLOCKED})))
    assert is_shown(log.text)


def test_a_message_is_formatted_before_it_is_escaped_and_needs_no_values() -> None:
    log = TaskLog()
    VisibleLog(log).info("100% \u202eof it")
    VisibleLog(log).warning("%s and %d", "\x1b[2J", 3)
    assert log.text == "100% \ufffdof it\n\u241b[2J and 3\n"


def test_the_text_of_an_error_is_escaped_and_its_fields_are_kept() -> None:
    error = CorruptDocumentError("It is torn.", exists=HOSTILE, found=HOSTILE)
    assert isinstance(error, StreamPipelineError)
    assert is_shown(str(error))
    assert (error.exists, error.evidence["found"]) == (HOSTILE, HOSTILE)


@pytest.mark.parametrize("kind", ["operators", "sensors", "triggers"])
def test_every_operator_sensor_and_trigger_of_the_provider_escapes_what_it_logs(kind: str) -> None:
    modules = [importlib.import_module(name) for entry in get_provider_info()[kind] for name in entry["python-modules"]]
    classes = {
        each
        for module in modules
        for each in vars(module).values()
        if isclass(each) and issubclass(each, BaseOperator | BaseTrigger) and each.__module__.startswith("airflow_provider")
    }
    assert len(classes) >= 2
    assert [each for each in classes if not issubclass(each, LogsVisibly)] == []
