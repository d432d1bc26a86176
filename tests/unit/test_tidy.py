"""Rules of this code base that no linter checks."""

import ast
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ("spark_jobs", "airflow_provider", "dags_examples", "benchmarks", "scripts")

VAGUE_NAMES = {"base", "common", "core", "helper", "helpers", "manager", "misc", "util", "utils"}
UNFINISHED = re.compile(r"\b(TO" r"DO|FIX" r"ME|XX" r"X|HA" r"CK)\b")
JVM = re.compile(r"\b(_jvm|_jdf|_jsparkSession|_jsc|py4j)\b")
MAY_TOUCH_THE_JVM = {
    "spark_jobs/declarative/sql.py",
    "spark_jobs/runtime/spark/hadoop_defaults.py",
    "spark_jobs/runtime/spark/session.py",
    "spark_jobs/runtime/spark/spark_facts.py",
    "spark_jobs/runtime/spark/plan.py",
    "spark_jobs/runtime/spark/columns_at_import.py",
    "spark_jobs/publication/conditional_log_store.py",
    "spark_jobs/publication/delta_jvm.py",
    "spark_jobs/publication/java_sources.py",
    "spark_jobs/publication/spark.py",
}
AIRFLOWS_VERSION = re.compile(
    r"airflow(\.sdk)?\.__version__|from airflow(\.sdk)? import [^\n]*__version__|\bAIRFLOW_V_\d|\bAIRFLOW_IS_\w|apache-airflow|"
    r"packaging\.version|airflow\.sdk\.execution_time|airflow\.sdk\.observability|from airflow\.sdk import [^\n]*\bconf\b"
)
"""Code that depends on the version of Airflow or on its executor, or that uses a name which only some versions have."""
SPARKS_VERSION = re.compile(
    r"pyspark\.__version__|from pyspark import[^\n]*__version__|\bspark\.version\b|\bversion\([\"']pyspark|hasattr\(SparkSession|"
    r"SupportsTriggerAvailableNow|to_arrow_schema|_streamingCheckpointManager|execution\.streaming\.(checkpointing\b|[A-Z])"
)
"""Code that depends on the version of Spark, or that uses a name which only some versions have."""


ONLY_AT_NIGHT = {
    "tests/airflow/drivers/test_yarn.py": "needs Maven, for a YARN",
    "tests/running_airflow/test_live_examples.py": "real drivers; tests/spark/test_history_then_tail.py has their seam at every change",
    "tests/running_airflow/test_killed_stops.py": "real drivers; test_savepoint_operators.py has the tries of one stop at every change",
    "tests/running_airflow/test_outages.py": "takes Airflow's database away from everybody",
    "tests/running_airflow/test_real_drivers.py": "a running Airflow with real drivers: each has tests without the other",
    "tests/running_airflow/test_stream_control.py": "real drivers of the examples; tests/airflow has their operators at every change",
    "tests/running_airflow/test_upgrades.py": "the same; tests/airflow/examples/test_upgrade_example.py has the DAG at every change",
    "tests/running_airflow/test_approximate_stream.py": "the same; tests/spark/test_backfill.py backfills at every change",
    "tests/running_airflow/test_write_audit_publish.py": "the same; tests/airflow/examples/test_dags.py runs it without the approval",
    "tests/system/test_bounded_killed.py": "real drivers; test_in_stores.py loses all but the home and the tables at every change",
    "tests/system/test_stop_killed.py": "real drivers; tests/crash/test_savepoint.py dies at each step of a stop at every change",
    "tests/system/test_running_stopped.py": "real drivers; tests/simulation/test_schedules.py has attempts that wake late at every change",
    "tests/system/test_soak.py": "many minutes; tests/spark has each failure: test_passing_over.py, test_table_refusals.py",
    "tests/spark/test_long_runs.py": "thousands of batches; tests/spark/test_log_folding.py has the bounds of logs after a few",
    "tests/spark/test_declarative_life.py": "whole lives of a project; test_declarative.py runs projects at every change",
    "tests/system/test_running_rescaled.py": "a driver of its own; tests/spark/test_rescaling.py rescales in a Spark that runs",
    "tests/system/test_demo.py": "the demo runs the main job twice; its parts have tests of their own",
}
"""Files that contain only nightly tests, each with the reason."""

ANOTHERS_TESTS = re.compile(r"^\s*(?:from|import) tests\.[\w.]*\btest_|^\s*from tests[\w.]* import (?:.*, )?test_", re.MULTILINE)


def files_in(*directories: str, pattern: str) -> Iterator[Path]:
    for directory in directories:
        yield from sorted((ROOT / directory).rglob(pattern))


def named(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def functions_of(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def test_every_file_name_says_what_is_inside() -> None:
    assert [named(path) for path in files_in(*SOURCE, "tests", "docs", pattern="*.*") if path.stem in VAGUE_NAMES] == []


def test_few_modules_touch_the_jvm() -> None:
    touching = {named(path) for path in files_in(*SOURCE, pattern="*.py") if JVM.search(path.read_text())}
    assert touching - MAY_TOUCH_THE_JVM == set()


def imports_if_it_can(module: ast.Module, package: str) -> bool:
    """Tells whether a module catches a failed import from a package."""
    return any(
        isinstance(inner, ast.Import | ast.ImportFrom) and package in ast.unparse(inner)
        for node in ast.walk(module)
        if isinstance(node, ast.Try) and any(re.search("ImportError|NotFoundError", ast.unparse(each)) for each in node.handlers)
        for statement in node.body
        for inner in ast.walk(statement)
    )


def test_only_one_module_depends_on_the_version_of_airflow() -> None:
    texts = {named(path): path.read_text() for path in files_in("airflow_provider", "dags_examples", pattern="*.py")}
    asking = {
        name for name, text in texts.items() if AIRFLOWS_VERSION.search(text) or imports_if_it_can(ast.parse(text), "airflow")
    }
    assert asking == {"airflow_provider/version_compat.py"}


@pytest.mark.parametrize(
    "code",
    [
        "from airflow import __version__ as found",
        "import airflow\nif airflow.__version__ < '4': ...",
        "from airflow.providers.standard.version_compat import AIRFLOW_V_3_1_PLUS",
        "import os\nos.environ.get('AIRFLOW_IS_K8S_EXECUTOR_POD')",
        "from importlib.metadata import version\nversion('apache-airflow')",
        "from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance",
        "from airflow.sdk import DAG, conf",
        "from airflow.sdk.observability import stats",
        "try:\n    from airflow.sdk import RetryPolicy\nexcept ImportError:\n    RetryPolicy = object",
    ],
)
def test_code_that_depends_on_the_version_of_airflow_is_recognized(code: str) -> None:
    assert AIRFLOWS_VERSION.search(code) or imports_if_it_can(ast.parse(code), "airflow")


def test_only_one_module_depends_on_the_version_of_spark() -> None:
    """The other module contains the supported versions."""
    texts = {named(path): path.read_text() for path in files_in("spark_jobs", pattern="*.py")}
    asking = {
        name for name, text in texts.items() if SPARKS_VERSION.search(text) or imports_if_it_can(ast.parse(text), "pyspark")
    }
    assert asking == {"spark_jobs/runtime/spark/spark_facts.py", "spark_jobs/protocol/spark_versions.py"}


@pytest.mark.parametrize(
    "code",
    [
        "import pyspark\nif pyspark.__version__ < '4.2': ...",
        "from pyspark import __version__ as found",
        "if spark.version.startswith('4.0'): ...",
        "from importlib.metadata import version\nversion('pyspark')",
        "if hasattr(SparkSession, 'something'): ...",
        "from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow",
        "NAME = 'org.apache.spark.sql.execution.streaming.checkpointing.OffsetSeqMetadata$'",
        "try:\n    from pyspark.sql.streaming import datasource\nexcept ImportError:\n    datasource = None",
    ],
)
def test_code_that_depends_on_the_version_of_spark_is_recognized(code: str) -> None:
    assert SPARKS_VERSION.search(code) or imports_if_it_can(ast.parse(code), "pyspark")


def test_no_file_contains_a_note_to_finish_something_later() -> None:
    texts = [*files_in(*SOURCE, "tests", pattern="*.py"), *files_in("docs", pattern="*.md"), *ROOT.glob("*.md")]
    assert [named(path) for path in texts if UNFINISHED.search(path.read_text())] == []


def waits_for_the_night(tests: ast.Module) -> bool:
    """Tells whether the whole module, or each of its tests, is marked ``nightly``."""
    marks = [ast.unparse(node.value) for node in tests.body if isinstance(node, ast.Assign) and "pytestmark" in ast.unparse(node)]
    decorators = [
        [ast.unparse(each) for each in node.decorator_list]
        for node in tests.body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    ]
    return any("mark.nightly" in mark for mark in marks) or all("pytest.mark.nightly" in each for each in decorators)


def test_every_file_of_tests_has_a_test_that_runs_for_every_change() -> None:
    waiting = {named(path) for path in files_in("tests", pattern="test_*.py") if waits_for_the_night(ast.parse(path.read_text()))}
    assert waiting == set(ONLY_AT_NIGHT)


def test_no_module_imports_from_the_tests_of_another_one() -> None:
    """What several of them need is in ``tests/support``."""
    texts = {named(path): path.read_text() for path in files_in("tests", pattern="*.py")}
    assert [name for name, text in texts.items() if ANOTHERS_TESTS.search(text)] == []


@pytest.mark.parametrize("page", [*files_in("docs", pattern="*.md"), *sorted(ROOT.glob("*.md"))], ids=named)
def test_a_page_has_one_title(page: Path) -> None:
    prose = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    assert len(re.findall(r"^# \S", prose, flags=re.MULTILINE)) == 1


def test_the_reference_documents_exactly_the_public_names() -> None:
    reference = ROOT / "docs/reference/api.md"
    if reference.exists():
        documented = set(re.findall(r"^#{2,3} `(\w+)", reference.read_text(), flags=re.MULTILINE))
        assert documented == set(import_module("spark_jobs").__all__)
