from pathlib import Path

import pytest

from spark_jobs.api.load import load_pipeline
from spark_jobs.protocol.documents import OnEnd
from spark_jobs.protocol.errors import InvalidPipelineError
from tests.unit.declarative.conftest import Project


def test_a_project_becomes_a_pipeline_of_its_name_that_suspends_at_its_end(orders: Project) -> None:
    orders.specification(
        """
        name: my-shop
        storage: file:///storage
        configuration: {spark.sql.shuffle.partitions: "2", shop.region: eu}
        libraries: [{glob: {include: transformations/**}}]
        """
    )
    pipeline = orders.load()
    assert (pipeline.name, pipeline.on_end) == ("my_shop", OnEnd.SUSPEND)
    assert pipeline.conf == {"spark.sql.shuffle.partitions": "2"}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("name: shop\nstorage: s\nmode: live\n", r"\[PIPELINE_SPEC_UNEXPECTED_FIELD\].*mode"),
        ("name: shop\n", r"\[PIPELINE_SPEC_MISSING_REQUIRED_FIELD\].*storage"),
        ("name: shop\nstorage: s\nlibraries: [{glob: {include: 'a/*/b.py'}}]\n", r"\[PIPELINE_SPEC_INVALID_GLOB_PATTERN\]"),
        ("name: shop\nstorage: s\nconfiguration: {spark.x: 2}\n", r"\[PIPELINE_SPEC_DICT_VALUE_NOT_STRING\]"),
        ("name: shop\nstorage: s\n", "names no file that exists: libraries include nothing"),
        ("name: shop\nstorage: s\nlibraries: [{file: a.py}]\n", "not the specification of a project"),
        ("- shop\n", "not the specification of a project|PIPELINE_SPEC"),
        ("name: [", "it is not YAML"),
    ],
)
def test_a_mistake_in_the_specification_has_the_error_class_of_spark(project: Project, text: str, problem: str) -> None:
    project.specification(text)
    assert "spark-pipeline.yml" in str(project.refused(problem))


def test_a_missing_specification_is_refused_by_its_path(tmp_path: Path) -> None:
    with pytest.raises(InvalidPipelineError, match=r"shop\.yml does not exist"):
        load_pipeline(str(tmp_path / "shop.yml"))


def test_a_file_of_another_kind_is_refused(orders: Project) -> None:
    orders.write("notes.txt", "remember")
    orders.refused(r"transformations/notes\.txt is neither a \.py nor a \.sql file")


def test_a_file_that_two_libraries_include_is_loaded_once(orders: Project) -> None:
    orders.specification(
        """
        name: shop
        storage: file:///storage
        libraries: [{glob: {include: more/**}}, {glob: {include: transformations/**}}, {glob: {include: transformations/orders.py}}]
        """
    )
    (orders.folder / "more").mkdir()
    (orders.folder / "more" / "large.sql").write_text("CREATE STREAMING TABLE large AS SELECT * FROM STREAM orders WHERE id > 9")
    assert set(orders.load().graph().stages) == {"orders", "large"}


def test_compiled_python_files_are_not_files_of_the_project(orders: Project) -> None:
    compiled = orders.folder / "transformations" / "__pycache__" / "orders.cpython-311.pyc"
    compiled.parent.mkdir(exist_ok=True)
    compiled.write_bytes(b"")
    assert set(orders.load().graph().stages) == {"orders"}


def test_the_mistakes_of_all_files_are_named_with_their_lines(project: Project) -> None:
    project.write("a.py", "1 / 0\n").write("b.py", "\n\nraise ValueError('no')\n")
    error = project.refused("2 mistakes were found")
    assert "transformations/a.py: importing it failed at line 3: ZeroDivisionError" in str(error)
    assert "transformations/b.py: importing it failed at line 5: ValueError: no" in str(error)


def test_files_find_the_session_in_each_way_that_spark_offers(project: Project) -> None:
    project.write(
        "tables.py",
        """
        from pyspark.sql import SparkSession

        @dp.table
        def one():
            return SparkSession.active().readStream.table("raw.one")

        @dp.table
        def two():
            return SparkSession.builder.getOrCreate().readStream.table("raw.two")

        session = SparkSession.getActiveSession()

        @dp.table
        def three():
            return session.readStream.table("raw.three")

        @dp.table
        def four():
            return spark.readStream.table("raw.four")
        """,
    )
    assert set(project.load().graph().sources) == {"source_one", "source_two", "source_three", "source_four"}


def test_a_read_outside_of_a_flow_is_refused_with_its_line(project: Project) -> None:
    project.write("tables.py", "rows = spark.readStream.table('raw.one')\n")
    error = project.refused("asks for a Spark session when it is imported")
    assert error.evidence["line"] == 3


def test_files_see_the_folder_of_the_project_and_import_from_it(project: Project) -> None:
    (project.folder / "shop_paths.py").write_text("from pathlib import Path\nINCOMING = Path('place.txt').read_text()\n")
    (project.folder / "place.txt").write_text("/data/incoming")
    project.write(
        "orders.py",
        """
        from shop_paths import INCOMING

        @dp.table
        def orders():
            return spark.readStream.format("delta").load(INCOMING)
        """,
    )
    assert list(project.load().graph().sources) == ["source_incoming"]


def test_a_live_project_has_sources_without_an_end(orders: Project) -> None:
    orders.write(
        "hourly.py",
        """
        @dp.table
        def hourly():
            rows = spark.readStream.table("raw.events").withWatermark("at", "1 hour")
            return rows.groupBy(F.window("at", "1 hour")).count()
        """,
    )
    pipeline = load_pipeline(f"{orders.folder}/spark-pipeline.yml:live")
    assert pipeline.on_end == OnEnd.DRAIN
    sources = {str(name): source for name, source in pipeline.graph().sources.items()}
    assert {name: source.bounded for name, source in sources.items()} == {"source_events": False, "source_incoming": False}


@pytest.mark.parametrize("name", ["other", ""])
def test_only_the_name_live_selects_another_form_of_a_project(orders: Project, name: str) -> None:
    with pytest.raises(InvalidPipelineError, match=r"a project has no .* for a stream without an end"):
        load_pipeline(f"{orders.folder}/spark-pipeline.yml:{name}")
