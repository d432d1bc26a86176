"""A task's options for checkpoints, as rendered by templates and forms."""

from pathlib import Path
from typing import Any

import pytest

from airflow_provider.orders import checkpoint_overrides, is_true
from spark_jobs.control.channel import Channel
from spark_jobs.protocol.checkpointing import CheckpointOverrides
from spark_jobs.protocol.errors import InvalidParameterError
from spark_jobs.protocol.ids import RequestId
from spark_jobs.storage.local import LocalFiles
from tests.airflow.conftest import Homes, connection
from tests.airflow.deferral import carry_out
from tests.airflow.flights import context, operator


@pytest.mark.parametrize("nothing", [None, {}, "", " ", "{}", "null", {"interval": "", "retained": None, "unaligned": "None"}])
def test_empty_checkpoint_options_override_nothing(nothing: Any) -> None:
    assert checkpoint_overrides("checkpoint=", nothing) is None


@pytest.mark.parametrize(
    "given",
    [
        {"interval": "30 seconds", "retained": 3, "unaligned": True},
        {"interval": " 30 seconds ", "retained": "3", "unaligned": "True"},
        '{"interval": "30 seconds", "retained": 3, "unaligned": true}',
    ],
)
def test_texts_are_read_as_the_values_that_they_spell(given: Any) -> None:
    found = checkpoint_overrides("checkpoint=", given)
    assert found == CheckpointOverrides(interval_ms=30_000, retained=3, unaligned=True)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ([], "\\[\\] is not a mapping"),
        ("[]", "\\[\\] is not a mapping"),
        ("often", "'often' is not a mapping"),
        ({"retained": "9" * 5_000}, "is not a whole number"),
        ({"retained": "many"}, "retained='many' is not a whole number"),
        ({"interval": "30"}, "interval=30 is not a string"),
        ({"unaligned": "true", "max_in_flight_bytes": "1"}, "max_in_flight_bytes= is for aligned checkpoints"),
        ({3: "x"}, "3 is not a setting"),
    ],
)
def test_the_error_for_a_refused_option_names_its_argument(given: Any, problem: str) -> None:
    with pytest.raises(InvalidParameterError, match=f"checkpoint= of the task: .*{problem}") as caught:
        checkpoint_overrides("checkpoint= of the task", given)
    assert caught.value.remedy


def test_the_request_has_the_checkpoint_settings_of_the_connection_overridden_by_those_of_the_task(
    homes: Homes, fake_python: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for_all = {"interval": "1 minute", "retained": 2, "unaligned": True}
    monkeypatch.setenv("AIRFLOW_CONN_SET", connection(home_root=str(homes.root), python=str(fake_python), checkpoint=for_all))
    settings = {"interval": "30 seconds", "aligned_timeout": "5 seconds", "timeout": ""}
    carry_out(operator(conn_id="set", checkpoint=settings), context())
    asked = CheckpointOverrides(interval_ms=30_000, retained=2, unaligned=False, aligned_timeout_ms=5_000)
    assert Channel(LocalFiles(homes.path())).request(RequestId("start-1")).checkpoint == asked


@pytest.mark.parametrize(("given", "meant"), [(True, True), (" true ", True), ("False", False), ("", False), ("None", False)])
def test_a_text_can_spell_true_or_false(given: bool | str, *, meant: bool) -> None:
    assert is_true("drain", given) is meant


@pytest.mark.parametrize("given", ["1", "yes", "on"])
def test_a_text_that_only_looks_true_is_refused(given: str) -> None:
    with pytest.raises(InvalidParameterError, match="drain=.* is neither True nor False"):
        is_true("drain", given)
