import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from types import ModuleType, SimpleNamespace

import pytest
from pyspark import cloudpickle

import spark_jobs
from spark_jobs.api.load import load_pipeline
from spark_jobs.api.location import locate_pipeline
from spark_jobs.protocol.errors import InvalidPipelineError, MissingRequirementError

ONE = "from spark_jobs import Pipeline\npipeline = Pipeline('flights')\n"


@pytest.fixture(autouse=True)
def _fresh_imports() -> Iterator[None]:
    path, modules = list(sys.path), set(sys.modules)
    yield
    sys.path[:] = path
    for name in sys.modules.keys() - modules:
        if (getattr(sys.modules[name], "__file__", None) or "").startswith("/tmp") or name.startswith("flights_"):
            del sys.modules[name]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "flights.py"


def write(file: Path, text: str) -> str:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(dedent(text))
    return str(file)


def refused(text: str, problem: str) -> InvalidPipelineError:
    with pytest.raises(InvalidPipelineError, match=problem) as caught:
        load_pipeline(text)
    assert caught.value.remedy
    return caught.value


def test_a_file_with_one_pipeline_is_enough(file: Path) -> None:
    assert load_pipeline(write(file, ONE)).name == "flights"


def test_a_file_is_found_from_the_current_folder(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(file, ONE)
    monkeypatch.chdir(file.parent)
    assert load_pipeline("flights.py").name == "flights"


def test_one_of_several_pipelines_is_selected_by_its_name(file: Path) -> None:
    place = write(file, ONE + "other = Pipeline('other')\n")
    assert load_pipeline(f"{place}:other").name == "other"
    error = refused(place, "it has 2 pipelines: pipeline, other")
    assert error.remedy == f"Write {place}:pipeline or {place}:other."


def test_two_names_of_one_pipeline_are_one_pipeline(file: Path) -> None:
    assert load_pipeline(write(file, ONE + "again = pipeline\n")).name == "flights"


def test_a_module_is_found_from_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "jobs_here" / "flights.py", ONE)
    monkeypatch.chdir(tmp_path)
    assert load_pipeline("jobs_here.flights").name == "flights"
    assert load_pipeline("jobs_here.flights:pipeline").name == "flights"


@pytest.mark.parametrize("text", ["", "flights.txt/x", "./flights", "flights.py:", "flights.py:a.b", "a-b", "x:y:z", "1.2"])
def test_a_text_that_names_neither_a_file_nor_a_module_is_refused(text: str) -> None:
    refused(text, "names neither a file nor a module")


def test_the_folder_from_which_neighbours_are_imported_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert locate_pipeline("jobs/flights.py:x").folder == tmp_path / "jobs"
    assert locate_pipeline("jobs.flights").folder == tmp_path


def test_a_missing_file_is_refused_with_the_nearest_one(file: Path) -> None:
    write(file, ONE)
    error = refused(str(file.with_name("flihgts.py")), "flihgts.py does not exist")
    assert error.remedy == "Did you mean 'flights.py'?"
    file.unlink()
    assert refused(str(file), "flights.py does not exist").remedy == "Correct the path: its folder has no such file."


def test_a_missing_module_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    refused("nowhere.flights", "there is no module 'nowhere'")


def test_the_error_of_a_module_with_a_missing_import_names_the_import(file: Path) -> None:
    refused(write(file, "import nowhere\n"), "importing it failed at line 1: ModuleNotFoundError: No module named 'nowhere'")


def test_a_file_without_a_pipeline_is_refused(file: Path) -> None:
    refused(write(file, "from spark_jobs import Pipeline\n"), "it declares no pipeline")


def test_a_missing_name_is_refused_with_the_nearest_one(file: Path) -> None:
    error = refused(f"{write(file, ONE)}:pipelin", "it has no 'pipelin'")
    assert "Did you mean 'pipeline'?" in error.remedy


def test_a_name_of_an_object_that_is_not_a_pipeline_is_refused(file: Path) -> None:
    refused(f"{write(file, ONE + 'x = 3')}:x", "'x' is a int")


def test_a_syntax_error_is_named_with_its_line(file: Path) -> None:
    error = refused(write(file, ONE + "def broken(:\n"), r"flights\.py, line 3: ")
    assert error.evidence["line"] == 3


def test_any_exception_of_the_module_is_named_with_its_line(file: Path) -> None:
    error = refused(write(file, "import os\n\nos.environ['NOT_SET_ANYWHERE']\n"), "at line 3: KeyError: 'NOT_SET_ANYWHERE'")
    assert isinstance(error.__cause__, KeyError)


def test_a_module_that_ends_the_process_is_refused(file: Path) -> None:
    refused(write(file, "import sys\nsys.exit(0)\n"), "it ends the process at line 2")


def test_a_refused_declaration_goes_through_as_it_is(file: Path) -> None:
    refused(write(file, "from spark_jobs import Pipeline\nPipeline('a b')\n"), "^Pipeline 'a b': 'a b' cannot be a name")


def test_neighbours_are_imported_by_their_names(file: Path) -> None:
    write(file.with_name("neighbour_rules.py"), "NAME = 'ruled'\n")
    assert (
        load_pipeline(write(file, "import neighbour_rules\n" + ONE.replace("'flights'", "neighbour_rules.NAME"))).name == "ruled"
    )


def test_a_neighbour_can_still_be_imported_when_a_function_runs(file: Path) -> None:
    write(file.with_name("neighbour_later.py"), "ANSWER = 42\n")
    text = "@pipeline.source(bounded=True)\ndef events():\n    import neighbour_later\n    return neighbour_later.ANSWER\n"
    pipeline = load_pipeline(write(file, ONE + text))
    assert pipeline._declarations["events"].function() == 42
    assert sys.path[0] != str(file.parent)


def test_the_error_of_a_relative_import_shows_the_right_form(file: Path) -> None:
    refused(write(file, "from .rules import x\n"), "cannot use relative imports.*Name it as package.module")


def test_the_main_part_of_a_script_does_not_run(file: Path) -> None:
    assert load_pipeline(write(file, ONE + "if __name__ == '__main__':\n    raise SystemExit(1)\n")).name == "flights"


def test_two_files_of_one_name_are_two_modules(tmp_path: Path) -> None:
    texts = [write(tmp_path / folder / "flights.py", ONE.replace("flights", folder)) for folder in ("a", "b")]
    assert [load_pipeline(text).name for text in texts] == ["a", "b"]


def test_a_function_of_a_pipeline_file_is_pickled_by_value(file: Path) -> None:
    text = "def double(x):\n    return 2 * x\n\n@pipeline.source(bounded=True)\ndef events():\n    return double\n"
    double = load_pipeline(write(file, ONE + text))._declarations["events"].function()
    assert double.__module__ not in sys.modules
    sent = cloudpickle.dumps(double)  # type: ignore[no-untyped-call]
    assert cloudpickle.loads(sent)(21) == 42


def fake_pyspark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Puts a pyspark whose sessions cost nothing in the place of pyspark's session module."""
    module = ModuleType("pyspark.sql.session")
    session = SimpleNamespace(_instantiatedSession=None)

    def start() -> object:
        session._instantiatedSession = session._instantiatedSession or object()
        return session._instantiatedSession

    vars(module).update(SparkSession=session, getOrCreate=start)
    monkeypatch.setitem(sys.modules, "pyspark.sql.session", module)


STARTS = "from pyspark.sql import session\n\nspark = (\n    session\n    .getOrCreate()\n)\n"


@pytest.fixture
def pyspark(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_pyspark(monkeypatch)
    package = ModuleType("pyspark.sql")
    package.session = sys.modules["pyspark.sql.session"]  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pyspark.sql", package)


@pytest.mark.usefixtures("pyspark")
def test_the_error_of_a_module_that_starts_spark_names_the_line_to_remove(file: Path) -> None:
    unused = "def later():\n    return session.getOrCreate()\n\n"
    error = refused(write(file, unused + STARTS + ONE), "it starts a Spark session when it is imported")
    assert error.remedy.startswith(f"Remove line 6 of {file}")


@pytest.mark.usefixtures("pyspark")
def test_a_neighbour_that_starts_spark_is_found(file: Path) -> None:
    neighbour = write(file.with_name("neighbour_spark.py"), STARTS)
    error = refused(write(file, "import neighbour_spark\n" + ONE), "it starts a Spark session when it is imported")
    assert error.remedy.startswith(f"Remove line 3 of {neighbour}")


@pytest.mark.usefixtures("pyspark")
def test_a_session_that_existed_before_the_import_is_accepted(file: Path) -> None:
    sys.modules["pyspark.sql.session"].SparkSession._instantiatedSession = object()
    assert load_pipeline(write(file, STARTS + ONE)).name == "flights"


@pytest.mark.usefixtures("pyspark")
def test_a_session_that_an_unknown_line_starts_is_refused_too(file: Path) -> None:
    text = "from pyspark.sql import session\ngetattr(session, 'getOr' + 'Create')()\n"
    error = refused(write(file, text + ONE), "it starts a Spark session when it is imported")
    assert "such as getOrCreate()" in error.remedy


def test_pyspark_keeps_its_sessions_in_the_attributes_that_the_check_reads() -> None:
    from pyspark.core.context import SparkContext
    from pyspark.sql.session import SparkSession

    assert hasattr(SparkSession, "_instantiatedSession")
    assert hasattr(SparkContext, "_active_spark_context")


@pytest.mark.parametrize("shadow", ["spark_jobs/__init__.py", "spark_jobs.py"])
def test_a_file_that_hides_this_package_is_refused(file: Path, shadow: str) -> None:
    write(file.parent / shadow, "")
    error = refused(write(file, ONE), "hides the package spark_jobs")
    assert error.evidence["path"] == str(file.parent / shadow)


def test_a_package_that_hides_this_one_is_refused_for_modules_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "spark_jobs" / "__init__.py", "")
    monkeypatch.chdir(tmp_path)
    refused("jobs_there.flights", "hides the package spark_jobs")


def test_a_plain_folder_with_the_name_of_this_package_hides_nothing(file: Path) -> None:
    (file.parent / "spark_jobs").mkdir()
    assert load_pipeline(write(file, ONE)).name == "flights"


@pytest.mark.every_version
def test_a_link_to_this_package_hides_nothing(file: Path) -> None:
    (file.parent / "spark_jobs").symlink_to(Path(spark_jobs.__file__).parent)
    assert load_pipeline(write(file, ONE)).name == "flights"


def test_a_project_is_refused_by_a_spark_that_lacks_its_definitions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark 4.0 has no definitions, and Spark 4.1 has some."""
    specification = write(tmp_path / "spark-pipeline.yml", "name: shop\nstorage: s\nlibraries: [{glob: {include: a/**}}]\n")
    monkeypatch.setitem(sys.modules, "pyspark.pipelines.cli", None)
    for name in [name for name in sys.modules if name.startswith("spark_jobs.declarative.")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(MissingRequirementError, match=r"Spark 4\.\d lacks definitions .*They are in Spark 4\.2 and newer"):
        load_pipeline(specification)
