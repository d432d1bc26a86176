import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent

import pytest
from pyspark import SparkContext

from spark_jobs.api.load import load_pipeline
from spark_jobs.api.pipeline import Pipeline
from spark_jobs.declarative.sql import ParserProcess, SqlParser
from spark_jobs.protocol.errors import InvalidPipelineError


class Project:
    """The files of a declarative project, and methods that load it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.specification("name: shop\nstorage: file:///storage\nlibraries: [{glob: {include: transformations/**}}]\n")

    def specification(self, text: str) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "spark-pipeline.yml").write_text(dedent(text))

    def write(self, name: str, text: str) -> "Project":
        file = self.folder / "transformations" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        imports = "from pyspark import pipelines as dp\nfrom pyspark.sql import functions as F\n" if file.suffix == ".py" else ""
        file.write_text(imports + dedent(text))
        for compiled in file.parent.glob(
            f"__pycache__/{file.stem}.*"
        ):  # Python takes it for that of a file written in the same second
            compiled.unlink()
        return self

    def load(self, **settings: str) -> Pipeline:
        return load_pipeline(str(self.folder / "spark-pipeline.yml"), settings)

    def refused(self, problem: str) -> InvalidPipelineError:
        with pytest.raises(InvalidPipelineError, match=problem) as caught:
            self.load().graph()
        assert caught.value.remedy
        return caught.value


@pytest.fixture(autouse=True)
def _no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets a project be loaded before Spark starts, as in a driver. Earlier tests may have left a Spark context in this process."""
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)


_start_parser = ParserProcess.parser


@pytest.fixture(scope="session")
def parser() -> Iterator[SqlParser]:
    """Spark's parser in a Java process that the tests share."""
    with ParserProcess() as process:
        yield _start_parser(process)


@pytest.fixture(autouse=True)
def _shared_parser(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets each project that has SQL use the shared parser."""
    monkeypatch.setattr(ParserProcess, "parser", lambda process: request.getfixturevalue("parser"))


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    path, folder = list(sys.path), os.getcwd()
    yield Project(tmp_path / "shop")
    assert os.getcwd() == folder
    sys.path[:] = path


Inputs = Callable[[str], list[str]]


@pytest.fixture
def orders(project: Project) -> Project:
    """A project with one table, which reads files."""
    return project.write(
        "orders.py",
        """
        @dp.table
        def orders():
            return spark.readStream.schema("id LONG, at TIMESTAMP").parquet("/data/incoming/")
        """,
    )
