"""The options of a start, as people write them and as the request stores them."""

import inspect
from pathlib import Path
from typing import Any

import pytest

from spark_jobs import Pipeline
from spark_jobs.protocol.checkpointing import CheckpointOverrides
from spark_jobs.protocol.documents import OnEnd, OnRewind, Publish, RestoreFrom
from spark_jobs.protocol.errors import InvalidParameterError
from spark_jobs.protocol.ids import AttemptNumber, RunId
from spark_jobs.protocol.start_requests import START_ARGUMENTS, StartOptions, StartRequest, read_start_arguments, start_request
from spark_jobs.storage.open import open_place


def read(**written: Any) -> StartOptions:
    return StartOptions(**read_start_arguments(written, lambda place: open_place(place).url))


def test_the_options_have_their_defaults_without_arguments() -> None:
    assert read() == StartOptions()
    assert read(**dict.fromkeys(START_ARGUMENTS)) == StartOptions()
    assert read(**dict.fromkeys(START_ARGUMENTS, " ")) == StartOptions()


def test_an_unknown_argument_is_a_type_error_as_in_a_call() -> None:
    with pytest.raises(TypeError, match="'on_rewnd' is not an option of a start: these are on_end, publish"):
        read(on_rewnd="keep")


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ({"on_end": "suspend", "publish": Publish.EXTERNAL}, StartOptions(on_end=OnEnd.SUSPEND, publish=Publish.EXTERNAL)),
        ({"fresh": "True", "on_rewind": "keep"}, StartOptions(fresh=True, on_rewind=OnRewind.KEEP)),
        ({"state_partitions": " 8 ", "allow_dropped": "None"}, StartOptions(state_partitions=8)),
        ({"new_sources": "['orders', 'clicks']"}, StartOptions(new_sources=("orders", "clicks"))),
        ({"full_refresh": ["hourly, daily", "other"]}, StartOptions(full_refresh=("hourly", "daily", "other"))),
        ({"adopt_offsets": {"orders": Path("/old")}}, StartOptions(adopt_offsets={"orders": "/old"})),
        ({"checkpoint": '{"retained": "3"}'}, StartOptions(checkpoint=CheckpointOverrides(retained=3))),
        ({"checkpoint": CheckpointOverrides(retained=3)}, StartOptions(checkpoint=CheckpointOverrides(retained=3))),
    ],
)
def test_texts_of_forms_and_values_of_python_mean_the_same(written: dict[str, Any], expected: StartOptions) -> None:
    assert read(**written) == expected


@pytest.mark.parametrize(
    ("written", "problem"),
    [
        ({"on_end": "stop"}, "on_end='stop' is unknown"),
        ({"on_rewind": "replaced"}, "on_rewind='replaced' is unknown"),
        ({"fresh": "1"}, "fresh=1 is neither True nor False"),
        ({"allow_dropped": "yes"}, "allow_dropped='yes' is neither True nor False"),
        ({"state_partitions": 0}, "state_partitions=0 is not a whole number above 0"),
        ({"new_sources": 3}, "new_sources=3 is not a list of names"),
        ({"new_sources": {"a": 1}}, "is not a list of names"),
        ({"adopt_offsets": "orders=/old"}, "adopt_offsets='orders=/old' is not a mapping"),
        ({"restore": 3}, "restore=3 is not a path or a URL"),
        ({"checkpoint": {"interval": "soon"}}, "checkpoint interval='soon' is not an interval"),
        ({"allow_drained": True}, "restore names no savepoint for allow_drained"),
        ({"restore": "wasbs://bucket/savepoint"}, "is not supported"),
    ],
)
def test_an_invalid_value_is_refused_before_anything_is_started(written: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidParameterError, match=problem) as refused:
        read(**written)
    assert refused.value.remedy


def test_a_relative_path_of_a_savepoint_becomes_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    expected = RestoreFrom(savepoint=f"file://{tmp_path}/savepoint", allow_drained=True)
    for name in ("savepoint", tmp_path / "savepoint", f"file://{tmp_path}/savepoint"):
        assert read(restore=name, allow_drained=True).restore == expected


def test_every_option_is_an_argument_of_the_same_name() -> None:
    of_savepoint = {"allow_drained", "take_pending"}  # stored with the savepoint
    assert START_ARGUMENTS.keys() - of_savepoint == StartOptions.model_fields.keys() - {"run"}
    assert of_savepoint <= RestoreFrom.model_fields.keys()


def test_a_request_has_all_options_with_sorted_names() -> None:
    options = StartOptions(run=RunId("r"), fresh=True, full_refresh=("b", "a"), restore=RestoreFrom(savepoint="file:///s"))
    request = start_request(options, AttemptNumber(2), {"x": 1})
    assert {name: getattr(request, name) for name in StartOptions.model_fields} == dict(options) | {"full_refresh": ("a", "b")}
    assert (request.request, request.parameters) == ("start-2", {"x": 1})
    assert StartRequest.model_fields.keys() > StartOptions.model_fields.keys()


def test_a_notebook_shows_every_option_with_its_default_and_its_help() -> None:
    shown = inspect.signature(Pipeline.run).parameters
    assert {name: shown[name].default for name in START_ARGUMENTS} == {
        name: each.default for name, each in START_ARGUMENTS.items()
    }
    assert all(f"{name}: {each.help}" in str(Pipeline.run.__doc__) for name, each in START_ARGUMENTS.items())
