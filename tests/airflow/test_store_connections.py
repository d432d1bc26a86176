"""A connection names another one, whose credentials open its homes in a store. No process needs them in its environment."""

import asyncio
import json
import os
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast
from unittest.mock import Mock

import pyarrow as pa
import pytest
from airflow.sdk import Connection
from airflow.sdk.log import redact  # type: ignore[attr-defined]
from deltalake import write_deltalake

from airflow_provider.drivers.local_driver import start_local_driver
from airflow_provider.hooks.stream_pipeline import StreamPipelineHook
from airflow_provider.operators.publish_checkpoint import PublishCheckpointOperator
from airflow_provider.operators.savepoint import StopWithSavepointOperator, TriggerSavepointOperator
from airflow_provider.store_connections import read_store_connection, use_store_connection_in_triggerer
from airflow_provider.triggers.home import HomeTrigger
from airflow_provider.triggers.publication import PublicationTrigger
from airflow_provider.version_compat import AirflowNotFoundException
from airflow_provider.waits.pipeline_states import StateWait
from airflow_provider.waits.public_checkpoints import _newest_commit
from spark_jobs.checkpoint.savepoint import verify
from spark_jobs.control.liveness import driver_at_work
from spark_jobs.protocol.documents import Publish, RunState
from spark_jobs.protocol.errors import InvalidParameterError, MissingRequirementError
from spark_jobs.publication.delta_rs import open_table
from spark_jobs.storage import settings_by_bucket
from spark_jobs.storage.azure_settings import AzureCredentials, AzureSettings
from spark_jobs.storage.google_settings import GoogleSettings
from spark_jobs.storage.object_store_settings import ObjectStoreSettings
from spark_jobs.storage.open import open_place
from spark_jobs.storage.s3_settings import S3Credentials, S3Settings
from tests.airflow.conftest import connection, in_another_process, named_in_connections
from tests.airflow.deferral import carry_out
from tests.airflow.flights import context, once
from tests.support.answering_driver import LIVE, Driver
from tests.support.azurite import KEY, azurite
from tests.support.command_line import UsedHome
from tests.support.home_event_triggers import QUICK, events_of
from tests.support.object_store import object_store, object_store_of_two_owners
from tests.support.staged_in_s3 import PipelineInS3
from tests.support.staged_pipeline import HOURLY

pytestmark = pytest.mark.usefixtures("no_stores")

KEYS = {"login": "AKIA1", "password": "of-the-connection"}


@pytest.fixture
def store() -> Iterator[str]:
    """A place in a store that is not in the environment. Two connections name it."""
    with object_store() as place:
        write_deltalake(f"{place}/tables/a", pa.table({"id": [1]}), storage_options={"allow_http": "true"})
        with named_in_connections(place):
            yield place


def read(**fields: Any) -> S3Settings:
    extra = fields.pop("extra", {})
    found = read_store_connection(
        "lake", lambda _: Connection(conn_id="lake", conn_type="aws", extra=json.dumps(extra), **fields)
    )
    assert isinstance(found, S3Settings)
    return found


def test_a_store_connection_has_the_fields_of_the_amazon_provider() -> None:
    extra = {"aws_session_token": "for-an-hour", "region_name": "eu-central-1", "endpoint_url": "https://store.example.com"}
    assert read(**KEYS, extra=extra) == S3Settings(
        "https://store.example.com", "eu-central-1", credentials=S3Credentials("AKIA1", "of-the-connection", "for-an-hour")
    )
    assert read(extra={"region_name": "eu-central-1"}) == S3Settings(None, "eu-central-1"), "the role of the host"
    assert read(extra={"service_config": {"s3": {"endpoint_url": "https://s3.example.com"}}}).endpoint == "https://s3.example.com"
    hosted = {"endpoint_url": "https://store.example.com", "config_kwargs": '{"s3": {"addressing_style": "virtual"}}'}
    assert read(extra=hosted).bucket_in_host


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"login": "AKIA1"}, "half of its credentials"),
        ({"extra": {"role_arn": "arn:aws:iam::1:role/writer"}}, "role_arn"),
        (
            {"extra": {"endpoint_url": "https://user:word@store"}},
            "The connection 'lake'.* its extra endpoint_url is not of the form",
        ),
        ({"extra": {"service_config": {"s3": {"endpoint_url": "store:9000"}}}}, "its extra endpoint_url is not of the form"),
    ],
)
def test_fields_that_not_every_client_supports_are_refused_by_name(fields: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidParameterError, match=problem) as refused:
        read(**fields)
    assert "word" not in str(refused.value)
    assert "AWS_ENDPOINT_URL" not in str(refused.value), "the worker's environment is not asked"


def azure(conn_type: str = "wasb", extra: dict[str, str] | None = None, **fields: Any) -> AzureSettings:
    given = Connection(conn_id="lake", conn_type=conn_type, extra=json.dumps(extra or {}), **fields)
    found = read_store_connection("lake", lambda _: given)
    assert isinstance(found, AzureSettings)
    return found


@pytest.mark.parametrize("conn_type", ["wasb", "adls"])
def test_a_store_connection_has_the_fields_of_the_azure_provider(conn_type: str) -> None:
    assert azure(conn_type, login="flights", password="key").credentials == AzureCredentials(account_key="key")
    assert azure(conn_type, {"shared_access_key": "key"}).credentials == AzureCredentials(account_key="key")
    assert azure(conn_type, {"sas_token": "sv=shared"}).credentials == AzureCredentials(sas_token="sv=shared")
    principal = AzureCredentials(client_id="client", client_secret="word", tenant_id="tenant")
    assert azure(conn_type, {"tenant_id": "tenant"}, login="client", password="word").credentials == principal
    assert azure(conn_type, host="https://flights.blob.core.windows.net/") == AzureSettings(), "the identity of the host"
    assert azure(conn_type, host="http://127.0.0.1:10000/flights").endpoint == "http://127.0.0.1:10000/flights"


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"extra": {"tenant_id": "tenant"}, "login": "client"}, "half of its credentials"),
        ({"extra": {"sas_token": "sv=shared"}, "password": "key"}, "several credentials"),
        ({"extra": {"connection_string": "AccountKey=hidden"}}, "connection_string"),
        ({"host": "http://user:hidden@127.0.0.1"}, "The connection 'lake'.* its host is not of the form"),
    ],
)
def test_fields_of_azure_that_not_every_client_supports_are_refused_by_name(fields: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidParameterError, match=problem) as refused:
        azure(**fields)
    assert "hidden" not in str(refused.value)


def test_a_store_connection_has_the_fields_of_the_google_provider() -> None:
    def read_google(extra: dict[str, str]) -> ObjectStoreSettings | None:
        given = Connection(conn_id="lake", conn_type="google_cloud_platform", extra=json.dumps(extra))
        return read_store_connection("lake", lambda _: given)

    assert read_google({"key_path": "/run/secrets/lake.json", "project": "flights"}) == GoogleSettings(
        credentials_file="/run/secrets/lake.json"
    )
    assert read_google({}) == GoogleSettings(), "the service account of the host"
    with pytest.raises(InvalidParameterError, match="keyfile_dict") as refused:
        read_google({"keyfile_dict": '{"private_key": "hidden"}'})
    assert "hidden" not in str(refused.value)


@pytest.mark.parametrize(
    ("variable", "fields"),
    [
        ("AZURE_STORAGE_ACCOUNT_KEY", {"extra": {"sas_token": "sv=shared"}}),
        ("AZURE_STORAGE_ACCESS_KEY", {"extra": {"tenant_id": "tenant"}, "login": "client", "password": "word"}),
        ("AZURE_STORAGE_ENDPOINT", {"password": "key"}),
    ],
)
def test_a_variable_that_replaces_a_part_of_a_connection_is_refused(
    monkeypatch: pytest.MonkeyPatch, variable: str, fields: dict[str, Any]
) -> None:
    azure(**fields)
    monkeypatch.setenv(variable, "http://127.0.0.1:10000/of-the-worker")
    with pytest.raises(InvalidParameterError, match=f"environment of this process has {variable}") as refused:
        azure(**fields)
    assert "of-the-worker" not in str(refused.value)


@pytest.mark.azure
def test_a_worker_with_only_a_connection_to_azure_tests_its_roots() -> None:
    with azurite() as place, pytest.MonkeyPatch.context() as monkeypatch:
        endpoint = os.environ["AZURE_STORAGE_ENDPOINT"]
        for name in AzureSettings.VARIABLES:
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps({"conn_type": "wasb", "host": endpoint, "password": KEY}))
        extra = {"home_root": f"{place}/homes", "store_conn_id": "lake"}
        monkeypatch.setenv("AIRFLOW_CONN_FLIGHTS", json.dumps({"conn_type": "stream_pipeline", "extra": extra}))
        _, said = StreamPipelineHook("flights").test_connection()
        assert f"{place}/homes can hold homes." in said, said
        assert open_place(place).paths("homes") == [], "the probe is gone"


def test_a_missing_connection_or_one_of_another_type_is_refused_for_a_store() -> None:
    with pytest.raises(InvalidParameterError, match="of type 'spark'") as refused:
        read_store_connection("lake", lambda _: Connection(conn_id="lake", conn_type="spark"))
    assert refused.value.remedy == "Name one of type aws, wasb, adls, google_cloud_platform."
    with pytest.raises(MissingRequirementError, match="no Airflow connection 'lake'"):
        read_store_connection("lake", Mock(side_effect=AirflowNotFoundException))


def test_the_settings_of_a_store_show_no_secret() -> None:
    settings = read(**KEYS, extra={"aws_session_token": "for-an-hour"})
    shown = f"{settings!r} {settings.for_spark({})}"
    assert "of-the-connection" not in shown
    assert "for-an-hour" not in shown


def test_a_worker_with_only_the_connection_tests_roots_and_reads_homes_and_tables(store: str) -> None:
    hook = StreamPipelineHook("flights")
    _, said = hook.test_connection()
    assert f"{store}/homes can hold homes." in said, said
    assert hook.files("orders").names("") == []
    assert open_place(store).paths("homes") == open_place(store).paths("savepoints") == [], "the probes are gone"
    assert open_table(f"{store}/tables/a").facts.version == 0
    assert _newest_commit(f"{store}/tables/a") == f"{0:020}.json", "so an asset watcher sees what is new"


def test_a_root_in_a_bucket_that_does_not_exist_fails_the_test_of_the_connection(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    extra = {"home_root": "s3://nobodys/homes", "store_conn_id": "lake"}
    monkeypatch.setenv("AIRFLOW_CONN_OTHERS", json.dumps({"conn_type": "stream_pipeline", "extra": extra}))
    well, said = StreamPipelineHook("others").test_connection()
    assert not well
    assert "s3://nobodys/homes: " in said


def test_a_root_that_the_credentials_may_only_read_fails_the_test_of_the_connection() -> None:
    with (
        object_store_of_two_owners("read-only", "others", "missing", actions=["s3:Get*", "s3:List*"]),
        named_in_connections("s3://read-only"),
    ):
        well, said = StreamPipelineHook("flights").test_connection()
        assert not well
        assert "s3://read-only/homes" in said
        assert "the store denies access" in said
        assert "give them the rights to list, read, write and delete there" in said
        assert open_place("s3://read-only").paths() == []


def test_a_triggerer_finds_the_store_by_the_name_of_the_tasks_connection(store: str) -> None:
    assert asyncio.run(use_store_connection_in_triggerer("flights")).store_conn_id == "lake"
    assert open_place(f"{store}/homes").names("") == []


def test_a_trigger_opens_a_home_with_the_credentials_of_its_tasks_connection(store: str) -> None:
    trigger = HomeTrigger(
        kind=StateWait.kind,
        arguments={"states": ["running"]},
        home=f"{store}/homes/orders",
        conn_id="flights",
        deadline_at=time.time(),
        timeout_s=0.0,
        poll_interval_s=0.1,
        max_poll_interval_s=0.1,
        settle_s=0.0,
    )
    lake = json.loads(os.environ["AIRFLOW_CONN_LAKE"])
    assert lake["password"] not in str(trigger.serialize())
    asyncio.run(anext(aiter(trigger.run())))  # type: ignore[arg-type]
    known = settings_by_bucket.settings_for(store)
    assert isinstance(known, S3Settings)
    assert known.credentials is not None
    assert known.credentials.access_key_id == lake["login"]


def test_a_worker_and_a_triggerer_with_only_the_connection_publish_and_see_the_publication(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    StreamPipelineHook("flights").files("orders")
    pipeline = PipelineInS3(store, tmp_path, "homes/orders")
    table = pipeline.make_table(HOURLY)
    pipeline.checkpoint({HOURLY: [(1, "a"), (2, "b")]}, publish=Publish.EXTERNAL)
    in_another_process(monkeypatch)
    operator = PublishCheckpointOperator(task_id="publish", pipelines="orders", conn_id="flights")
    (facts,) = cast(Mapping[str, Any], operator.execute(context())).values()
    assert (facts["checkpoint"], facts["sinks"]["hourly"]["version"]) == (1, 1)
    in_another_process(monkeypatch)
    (event,) = events_of(PublicationTrigger(home="orders", conn_id="flights", **QUICK), lambda: None)
    assert (event["checkpoint"], event["tables"]) == (1, {"hourly": {"table": table, "version": 1}})
    assert pipeline.commits(HOURLY) == [1]


def test_a_process_reads_a_table_with_the_newest_settings_of_its_connection() -> None:
    for _ in range(2):  # each server has a port of its own
        with object_store() as place:
            write_deltalake(f"{place}/tables/a", pa.table({"id": [1]}), storage_options={"allow_http": "true"})
            with named_in_connections(place):
                StreamPipelineHook("flights").files("home")
                assert open_table(f"{place}/tables/a").facts.version == 0


@pytest.fixture
def live(store: str, tmp_path: Path) -> UsedHome:
    """The home of an unbounded pipeline whose driver runs on another host."""
    StreamPipelineHook("flights").files("live")
    home = UsedHome(tmp_path, LIVE, f"{store}/homes")
    home.begin()
    home.beat(RunState.RUNNING, updated_at=datetime.now(UTC))
    return home


WAYS = pytest.mark.parametrize("deferrable", [True, False], ids=["deferred", "in the worker"])
TO_THE_LIVE_HOME: dict[str, Any] = {"home": "home", "conn_id": "flights"}
TO_THE_LIVE_HOME |= {"poll_interval_s": 0.02, "max_poll_interval_s": 0.05, "timeout_s": 20.0}


@WAYS
def test_a_worker_with_only_the_connection_makes_a_savepoint(
    store: str, live: UsedHome, monkeypatch: pytest.MonkeyPatch, *, deferrable: bool
) -> None:
    in_another_process(monkeypatch)
    task = TriggerSavepointOperator(task_id="save", target="first", deferrable=deferrable, **TO_THE_LIVE_HOME)
    with Driver(live):
        facts = carry_out(task, context())
    assert (facts["home"], facts["savepoint"]) == (f"{store}/homes/home", f"{store}/savepoints/first")
    assert verify(open_place(facts["savepoint"])).checkpoint == facts["checkpoint"] == 1


@WAYS
def test_a_worker_with_only_the_connection_stops_a_pipeline_with_a_savepoint_and_waits_for_its_end(
    store: str, live: UsedHome, monkeypatch: pytest.MonkeyPatch, *, deferrable: bool
) -> None:
    in_another_process(monkeypatch)
    task = StopWithSavepointOperator(task_id="stop", target="last", deferrable=deferrable, **TO_THE_LIVE_HOME)
    ends = once(lambda: live.files.names("answers"), live.beat)
    with Driver(live):
        facts = carry_out(task, context())
    ends.join()
    assert facts["savepoint"] == f"{store}/savepoints/last"
    assert verify(open_place(facts["savepoint"])).checkpoint == facts["checkpoint"] == 1
    assert not driver_at_work(live.files)


def test_a_driver_has_the_store_in_its_environment_instead_of_the_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SESSION_TOKEN", "of-the-worker")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "https://elsewhere.example.com")
    settings, started = read(**KEYS, extra={"endpoint_url": "https://store.example.com"}), Mock()
    start_local_driver(["driver"], output=tmp_path / "out", environment={}, store_settings=settings, popen=started)
    environment = started.call_args.kwargs["env"]
    assert {name: environment[name] for name in S3Settings.VARIABLES if name in environment} == {
        "AWS_ACCESS_KEY_ID": "AKIA1",
        "AWS_SECRET_ACCESS_KEY": "of-the-connection",
        "AWS_ENDPOINT_URL": "https://store.example.com",
    }
    assert "of-the-connection" not in str(started.call_args.args), "the command line is seen by all"


def test_a_process_of_a_task_has_the_store_in_its_environment_and_none_of_airflows_connections(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SESSION_TOKEN", "of-the-worker")
    monkeypatch.setenv("SHOP", "open")
    lake = json.loads(os.environ["AIRFLOW_CONN_LAKE"])
    environment = StreamPipelineHook("flights").environment()
    assert {name: environment[name] for name in S3Settings.VARIABLES if name in environment} == {
        "AWS_ACCESS_KEY_ID": lake["login"],
        "AWS_SECRET_ACCESS_KEY": lake["password"],
        "AWS_ENDPOINT_URL": lake["extra"]["endpoint_url"],
        "AWS_REGION": lake["extra"]["region_name"],
    }
    assert environment["SHOP"] == "open"
    assert not [name for name in environment if name.startswith(("AIRFLOW__", "AIRFLOW_CONN_"))]
    assert "AWS_SECRET_ACCESS_KEY" not in os.environ, "the task itself has no use for it"
    assert lake["password"] not in redact(f"with {lake['password']}")


def test_a_process_of_a_task_without_a_store_connection_has_the_workers_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "of-the-worker")
    monkeypatch.setenv("AIRFLOW_CONN_FLIGHTS", connection(home_root="/data/homes"))
    assert StreamPipelineHook("flights").environment()["AWS_SECRET_ACCESS_KEY"] == "of-the-worker"
