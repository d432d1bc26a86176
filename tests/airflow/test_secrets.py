"""A secret parameter reaches the driver's environment, the keys of a store that of an audit, and no place that others can read."""

import json
import sys
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any
from uuid import uuid4

import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.models.renderedtifields import RenderedTaskInstanceFields
from airflow.models.xcom import XComModel
from airflow.sdk import DAG
from airflow.utils.session import create_session
from deltalake import write_deltalake
from pyarrow import table

from airflow_provider.operators.stream_pipeline import StreamPipelineOperator
from spark_jobs.protocol.documents import Publish
from spark_jobs.protocol.ids import SinkName
from spark_jobs.storage.open import open_place
from tests.airflow.conftest import AIRFLOW_HOME, ROOT, Homes, connection, named_in_connections
from tests.airflow.flights import once
from tests.airflow.known_dags import run_dag
from tests.support.command_lines import CommandLines
from tests.support.kafka_broker import jars
from tests.support.object_store import S3_JARS, object_store
from tests.support.pages import files
from tests.support.secret_shapes import SHAPES, basic_login, shapes
from tests.support.short_jvm import SHORT_RUN
from tests.support.staged_in_s3 import PipelineInS3

pytestmark = [
    pytest.mark.airflow,
    pytest.mark.filterwarnings("ignore"),  # Airflow runs in this process, with the deprecations of its dependencies
]

CORE = uuid4().hex  # random, because Airflow keeps the source of a DAG, which is this file
SECRET = f'{CORE}/" +ü'
"""Quoting never changes the core."""

PIPELINE = """
from pydantic import BaseModel, SecretStr

from spark_jobs import DeltaSink, Pipeline


class Params(BaseModel):
    rows: str
    warehouse: str
    quotes: bool = False
    token: SecretStr


pipeline = Pipeline("secretive", params=Params)


@pipeline.source(bounded=True)
def numbers(spark, params):
    token = params.token.get_secret_value()
    if params.quotes:
        raise ValueError(f"no login at db?password={token}")
    return spark.readStream.format("delta").option("password", token).load(params.rows)


@pipeline.stage(sink=DeltaSink("{warehouse}/copy"))
def copy(numbers):
    return numbers
"""


@pytest.fixture(autouse=True)
def shop(monkeypatch: pytest.MonkeyPatch, settled: None) -> None:
    """A connection with a password."""
    monkeypatch.setenv("AIRFLOW_CONN_SHOP", json.dumps({"conn_type": "generic", "password": SECRET}))


@pytest.fixture
def triggers(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The serialized triggers of deferred tasks, as in Airflow's database."""
    found: list[str] = []
    defer = StreamPipelineOperator.defer

    def record(task: StreamPipelineOperator, *, trigger: Any, **arguments: Any) -> Any:
        found.append(json.dumps(trigger.serialize(), ensure_ascii=False))
        return defer(task, trigger=trigger, **arguments)

    monkeypatch.setattr(StreamPipelineOperator, "defer", record)
    return found


def run(secrets: Mapping[str, str] = MappingProxyType({"token": "shop"}), **arguments: Any) -> str:
    with DAG("secretive", schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC)) as dag:
        StreamPipelineOperator(task_id="run", home="flights", secrets=dict(secrets), poll_interval_s=0.05, retries=0, **arguments)
    return str(run_dag(dag).state)


def holding(*directories: Path, but: str = "", needle: str = CORE) -> Iterator[str]:
    """Yields the files that contain the secret."""
    for directory in directories:
        for path in directory.rglob("*"):
            if path.is_file() and not (but and path.match(but)) and needle.encode() in path.read_bytes():
                yield str(path)


def check(home: Path, command_lines: CommandLines, triggers: list[str], said: str, but: str = "") -> None:
    said_by = {"a command line": "\n".join(command_lines.seen), "a trigger": "\n".join(triggers), "the task's log": said}
    assert [name for name, text in said_by.items() if CORE in text] == []
    assert any("spark_jobs" in line and "--request" in line for line in command_lines.seen)
    assert list(holding(home, Path(AIRFLOW_HOME.name), but=but)) == []


def test_no_place_that_users_see_shows_a_secret(homes: Homes, triggers: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    ending = once(lambda: triggers, (homes.path() / ".go").touch)
    with CommandLines() as command_lines:
        assert run(entry="/pipelines/waits.py") == "success"
    ending.join()
    assert homes.starts()[0]["environment"]["SPARK_JOBS_PARAM_TOKEN"] == SECRET
    assert len(triggers) == 1
    check(homes.path(), command_lines, triggers, "".join(capfd.readouterr()), but=".started-*.json")  # the fake driver's own file


@pytest.mark.parametrize(
    "arguments",
    [
        {"parameters": {"url": "jdbc:x?password={{ conn.shop.password }}"}},
        {"parameters": {"urls": [{"url": "{{ conn.shop.password }}"}]}},
        {"conf": {"spark.executor.memory": "{{ conn.shop.password }}"}},
    ],
)
def test_a_password_that_a_template_put_into_an_argument_is_refused_before_it_is_written(
    homes: Homes, capfd: pytest.CaptureFixture[str], arguments: dict[str, Any]
) -> None:
    assert run(entry="/pipelines/answers.py", **arguments) == "failed"
    said = "".join(capfd.readouterr())
    assert "Airflow masks a value of" in said
    assert CORE not in said
    assert list(homes.root.iterdir()) == []


def use_real_drivers(homes: Homes, monkeypatch: pytest.MonkeyPatch, **settings: str) -> None:
    conf = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2"} | SHORT_RUN | settings
    extra = {"home_root": str(homes.root), "python": sys.executable, "master": "local[2]", "conf": json.dumps(conf)}
    monkeypatch.setenv("AIRFLOW_CONN_STREAM_PIPELINE_DEFAULT", connection(**extra))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


@pytest.mark.spark
@pytest.mark.parametrize(
    "quotes", [pytest.param(False, id="used"), pytest.param(True, id="quoted by an error", marks=pytest.mark.nightly)]
)
def test_no_real_driver_writes_a_secret_anywhere(
    homes: Homes,
    triggers: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    quotes: bool,
) -> None:
    use_real_drivers(homes, monkeypatch)
    write_deltalake(str(tmp_path / "rows"), table({"number": [1, 2, 3]}))
    (tmp_path / "secretive.py").write_text(PIPELINE)
    parameters = {"rows": str(tmp_path / "rows"), "warehouse": str(tmp_path / "warehouse"), "quotes": quotes}
    with CommandLines() as command_lines:
        state = run(entry=str(tmp_path / "secretive.py"), parameters=parameters)
    assert state == ("failed" if quotes else "success")
    said = "".join(capfd.readouterr())
    assert ("no login at db?password=***" in said) == quotes
    check(homes.path(), command_lines, triggers, said)
    assert list(holding(tmp_path / "warehouse")) == []


TALKATIVE = """
import logging
import sys
from pathlib import Path
from urllib.request import urlopen

from pydantic import SecretStr, create_model

from spark_jobs import DeltaSink, Pipeline

NAMES = [f"secret_{number}" for number in range(FORTY)]
Params = create_model("Params", rows=(str, ...), site=(str, ...), **dict.fromkeys(NAMES, (SecretStr, ...)))
pipeline = Pipeline("talkative", params=Params)


def secrets_of(params):
    return {name: getattr(params, name).get_secret_value() for name in NAMES}


@pipeline.source(bounded=True)
def numbers(spark, params):
    return spark.readStream.format("delta").options(**secrets_of(params)).load(params.rows)


@pipeline.stage(sink=DeltaSink("{site}/copy"))
def copy(numbers, params):
    context = numbers.sparkSession.sparkContext
    java_log = context._jvm.org.slf4j.LoggerFactory.getLogger("shop")
    for secret in secrets_of(params).values():
        print("printed", secret)
        print("printed", secret, file=sys.stderr)
        logging.getLogger("shop").warning("logged %s", secret)
        java_log.warn("logged " + secret)
    for page in ("/environment/", f"/api/v1/applications/{context.applicationId}/environment"):
        with urlopen(context.uiWebUrl + page) as answer:
            (Path(params.site) / page.strip("/").replace("/", "-")).write_bytes(answer.read())
    return numbers
"""


@pytest.mark.spark
def test_no_shape_of_a_secret_is_in_any_file_that_a_real_driver_leaves(
    homes: Homes,
    triggers: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Each shape has a core of its own: that one secret is masked must not hide another one."""
    cores = {name: f"hush{uuid4().hex[:12]}" for name in SHAPES}
    secrets = {f"secret_{number}": shapes(core)[name] for number, (name, core) in enumerate(cores.items())}
    assert len(secrets) == 40
    for parameter, secret in secrets.items():
        monkeypatch.setenv(f"AIRFLOW_CONN_{parameter.upper()}", json.dumps({"conn_type": "generic", "password": secret}))
    use_real_drivers(homes, monkeypatch, **{"spark.ui.enabled": "true", "spark.ui.port": "0"})
    write_deltalake(str(tmp_path / "rows"), table({"number": [1, 2, 3]}))
    (tmp_path / "talkative.py").write_text(TALKATIVE.replace("FORTY", "40"))
    site = tmp_path / "site"
    site.mkdir()
    with CommandLines() as command_lines:
        state = run(
            {name: name for name in secrets},
            entry=str(tmp_path / "talkative.py"),
            parameters={"rows": str(tmp_path / "rows"), "site": str(site)},
        )
    said = "".join(capfd.readouterr())
    assert state == "success", said
    with create_session() as session:
        rendered = [str(each.rendered_fields) for each in session.query(RenderedTaskInstanceFields)]
        sent = [str(each.value) for each in session.query(XComModel)]
    pages = [path.read_text() for path in site.glob("*environment*")]
    assert rendered
    assert sent
    assert len(pages) == 2
    assert all("spark.master" in page for page in pages)
    logs = "".join(path.read_text(errors="replace") for path in homes.path().rglob("*") if path.suffix in {".log", ".out"})
    assert logs.count("logged ***") >= 40, "the pipeline has talked"
    texts = {
        "a command line": "\n".join(command_lines.seen),
        "a trigger": "\n".join(triggers),
        "the task's log": said,
        "a rendered template": "\n".join(rendered),
        "an XCom": "\n".join(sent),
        "a page of Spark": "\n".join(pages),
    }
    shown = [
        (name, where)
        for name, core in cores.items()
        for needle in (core, basic_login(core))
        for where in (
            *(where for where, text in texts.items() if needle in text),
            *holding(homes.path(), site, Path(AIRFLOW_HOME.name), needle=needle),
        )
    ]
    assert shown == []


AUDIT = files(ROOT / "docs/how-to/write-audit-publish.md")


def write_audit(directory: Path, monkeypatch: pytest.MonkeyPatch) -> DAG:
    """Writes the audit of the guide for tables in S3, and returns the guide's DAG. Its Spark finds the client in the tests' jars."""
    script = AUDIT["audit_orders.py"].replace("delta_session(), sys.argv", "session_in_s3(), sys.argv")
    script = script.replace("import read_staged", "import read_staged\nfrom session_in_s3 import session_in_s3")
    (directory / "audit_orders.py").write_text(script.replace('F.col("revenue")', 'F.col("id")'))
    (directory / "session_in_s3.py").write_text(AUDIT["session_in_s3.py"])
    defaults = SHORT_RUN | {"spark.jars": ",".join(jars(S3_JARS)), "spark.jars.excludes": "software.amazon.awssdk:bundle"}
    (directory / "spark-defaults.conf").write_text("\n".join(f"{key} {value}" for key, value in defaults.items()))
    monkeypatch.setenv("SPARK_CONF_DIR", str(directory))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    text = AUDIT["audited_dag.py"].replace("/opt/venv/bin/python", sys.executable).replace("/opt/pipelines", str(directory))
    (directory / "audited_dag.py").write_text(text)
    return DagBag(dag_folder=str(directory / "audited_dag.py")).dags["audited_orders"]


# By day test_a_process_of_a_task_has_the_store_in_its_environment_and_none_of_airflows_connections has the keys, and
# test_an_audit_whose_spark_has_no_client_for_the_staged_rows_gets_the_same_error reads staged rows in S3.
@pytest.mark.nightly
@pytest.mark.spark
@pytest.mark.stores
@pytest.mark.usefixtures("no_stores")
@pytest.mark.parametrize(
    ("revenue", "states"),
    [
        (-1, {"run": "success", "audit": "failed", "publish": "upstream_failed"}),
        (1, {"run": "success", "audit": "success", "publish": "success"}),
    ],
)
def test_an_audit_reads_staged_rows_in_s3_with_the_keys_of_the_connection_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], revenue: int, states: dict[str, str]
) -> None:
    sink = SinkName("daily_revenue")
    with object_store() as store, pytest.MonkeyPatch.context() as keys:
        keys.setenv("AWS_SECRET_ACCESS_KEY", CORE)
        place = f"{store}/{uuid4()}"
        home = f"{place}/homes/orders"
        pipeline = PipelineInS3(place, tmp_path, "homes/orders")
        pipeline.make_table(sink)
        pipeline.checkpoint({sink: [(revenue, "a"), (2, "b")]}, publish=Publish.EXTERNAL)
        with named_in_connections(place, "stream_pipeline_default"):
            dag = write_audit(tmp_path, monkeypatch)
            facts = {"home": home, "checkpoint": 1}
            monkeypatch.setattr(StreamPipelineOperator, "execute", lambda *_, **__: facts)  # the rows are staged already
            with CommandLines() as command_lines:
                found = {task.task_id: str(task.state) for task in run_dag(dag).get_task_instances()}
            said = "".join(capfd.readouterr())
            assert ("Days with negative revenue: 1" in said) is (revenue < 0)
            assert found == states
            assert pipeline.commits(sink) == ([1] if revenue > 0 else [])
            written = open_place(home)
            documents = b"".join(written.read(name) for name in written.paths())
    with create_session() as session:
        stored = [str(each.rendered_fields) for each in session.query(RenderedTaskInstanceFields)]
    assert any("audit_orders.py" in fields for fields in stored)
    assert any("audit_orders.py" in line for line in command_lines.seen)
    shown = {"a command line": "\n".join(command_lines.seen), "the task's log": said, "a rendered template": "\n".join(stored)}
    assert [where for where, text in shown.items() if CORE in text] == []
    assert CORE.encode() not in documents
    assert list(holding(Path(AIRFLOW_HOME.name))) == []
