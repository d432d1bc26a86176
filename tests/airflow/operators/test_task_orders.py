"""The request of a task, from its arguments as rendered by templates and forms."""

from inspect import signature
from typing import Any

import pytest

from airflow_provider.exceptions import PipelineRunRefusedError
from airflow_provider.operators.stream_pipeline import STARTS_WITH, StreamPipelineOperator, order_of
from spark_jobs.control.channel import Channel
from spark_jobs.protocol.documents import RestoreFrom
from spark_jobs.protocol.errors import AccessDeniedError, InvalidParameterError
from spark_jobs.protocol.ids import AttemptNumber, PipelineName, RunId, start_request_id
from spark_jobs.protocol.start_requests import START_ARGUMENTS, StartOptions
from spark_jobs.storage.open import open_files
from tests.airflow.conftest import Homes
from tests.airflow.deferral import carry_out
from tests.airflow.flights import context

RUN = RunId("airflow/flights/now/run")


def a_task(entry: str = "answers", **arguments: Any) -> StreamPipelineOperator:
    given: dict[str, Any] = {"home": "flights", "poll_interval_s": 0.05, "timeout_s": 60.0, "deferrable": False}
    return StreamPipelineOperator(task_id="run", entry=f"/pipelines/{entry}.py", **(given | arguments))


def restores(**arguments: Any) -> RestoreFrom | None:
    return order_of(a_task(**arguments), RUN).restore


@pytest.mark.parametrize("nothing", [None, "", "latest"])
def test_a_task_that_names_no_savepoint_continues_from_its_own_home(homes: Homes, nothing: str | None) -> None:
    assert restores(restore=nothing, allow_drained="False") is None


@pytest.mark.parametrize("form", ["saved/monday", "{root}/saved/monday", "file://{root}/saved/monday"])
def test_a_savepoint_is_resolved_like_a_home(homes: Homes, form: str) -> None:
    found = restores(restore=form.format(root=homes.root))
    assert found == RestoreFrom(savepoint=f"file://{homes.root}/saved/monday")


@pytest.mark.parametrize(("given", "allowed"), [(True, True), ("True", True), ("true", True), ("false", False), ("", False)])
def test_a_form_can_allow_a_drained_savepoint(homes: Homes, given: bool | str, *, allowed: bool) -> None:
    found = restores(restore="saved", allow_drained=given)
    assert found is not None
    assert found.allow_drained is allowed


def test_a_directory_called_latest_is_named_by_its_path(homes: Homes) -> None:
    assert restores(restore="./latest") == RestoreFrom(savepoint=f"file://{homes.root}/latest")


@pytest.mark.parametrize("nothing", [None, "latest"])
def test_a_drained_savepoint_is_allowed_only_where_one_is_named(homes: Homes, nothing: str | None) -> None:
    with pytest.raises(InvalidParameterError, match="restore names no savepoint"):
        restores(restore=nothing, allow_drained=True)


@pytest.mark.parametrize("outside", ["/elsewhere", "../elsewhere", "s3://bucket/saved"])
def test_a_savepoint_outside_the_roots_is_refused_before_anything_is_requested(homes: Homes, outside: str) -> None:
    with pytest.raises((AccessDeniedError, InvalidParameterError)):
        restores(restore=outside)
    with pytest.raises(PipelineRunRefusedError):
        carry_out(a_task(restore=outside), context())
    assert list(homes.root.iterdir()) == []


def test_every_try_asks_for_the_same_start_from_the_savepoint(homes: Homes) -> None:
    """The next try then continues the start of the previous one, and does not start from the savepoint again."""
    channel = Channel(open_files(str(homes.path())))
    channel.claim(PipelineName("flights"))  # a refused start of a home that has not begun is forgotten
    for _ in range(2):
        with pytest.raises(PipelineRunRefusedError):
            carry_out(a_task("refused", restore="saved/monday", on_rewind="keep"), context())
    asked = [channel.request(start_request_id(AttemptNumber(number))) for number in (1, 2)]
    assert asked[0].restore == asked[1].restore == RestoreFrom(savepoint=f"file://{homes.root}/saved/monday")
    assert asked[0].run == asked[1].run


@pytest.mark.parametrize(("given", "partitions"), [(None, None), ("", None), ("None", None), (8, 8), (" 8 ", 8)])
def test_a_form_can_set_the_number_of_state_partitions(homes: Homes, given: int | str | None, partitions: int | None) -> None:
    assert order_of(a_task(state_partitions=given), RUN).state_partitions == partitions


@pytest.mark.parametrize("given", [0, -1, "0", "many", "8.5", True, "true"])
def test_a_wrong_number_of_state_partitions_is_refused(homes: Homes, given: int | str) -> None:
    with pytest.raises(InvalidParameterError, match="state_partitions"):
        order_of(a_task(state_partitions=given), RUN)


@pytest.mark.parametrize("argument", ["new_sources", "accept_data_loss", "full_refresh"])
@pytest.mark.parametrize(
    ("given", "sources"),
    [(None, ()), ("", ()), ([], ()), (["orders", "clicks"], ("orders", "clicks")), (" orders, clicks ", ("orders", "clicks"))],
)
def test_a_form_can_name_sources(homes: Homes, argument: str, given: list[str] | str | None, sources: tuple[str, ...]) -> None:
    named: dict[str, Any] = {argument: given}
    assert getattr(order_of(a_task(**named), RUN), argument) == sources


def test_a_form_can_allow_that_stages_are_dropped(homes: Homes) -> None:
    assert order_of(a_task(allow_dropped="true"), RUN).allow_dropped is True
    assert order_of(a_task(restore="saved", allow_dropped=True), RUN).allow_dropped is True
    assert order_of(a_task(allow_dropped="None"), RUN).allow_dropped is False


def test_a_form_can_take_over_pending_rows(homes: Homes) -> None:
    found = restores(restore="saved", take_pending="true")
    assert found is not None
    assert found.take_pending is True
    with pytest.raises(InvalidParameterError, match="restore names no savepoint for take_pending"):
        restores(take_pending=True)


def test_a_task_takes_every_option_of_a_start_and_has_its_default(homes: Homes) -> None:
    assert signature(StreamPipelineOperator.__init__).parameters.keys() >= set(STARTS_WITH)
    order = order_of(a_task(), RUN)
    assert StartOptions(**{name: getattr(order, name) for name in StartOptions.model_fields}) == StartOptions(run=RUN)
    assert all(f"{name}: {START_ARGUMENTS[name].help}" in str(StreamPipelineOperator.__doc__) for name in STARTS_WITH)


@pytest.mark.parametrize("given", ["1", "yes", 1])
@pytest.mark.parametrize("argument", ["allow_drained", "allow_dropped", "take_pending"])
def test_a_text_that_is_neither_true_nor_false_is_refused(homes: Homes, argument: str, given: object) -> None:
    named: dict[str, Any] = {argument: given}
    with pytest.raises(InvalidParameterError, match=f"{argument}=.* is neither True nor False"):
        order_of(a_task(restore="saved", **named), RUN)
