import subprocess
import sys
from types import ModuleType
from typing import Any

import pytest
from pydantic import BaseModel

import spark_jobs
from spark_jobs import DeltaSink, Pipeline
from spark_jobs.api.stage import RateLimits
from spark_jobs.protocol.documents import OnEnd, Publish
from spark_jobs.protocol.errors import InvalidPipelineError
from spark_jobs.protocol.ids import InputName, StageName


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module without a file, as a notebook's ``__main__`` is."""
    module = ModuleType("notebook")
    monkeypatch.setitem(sys.modules, "notebook", module)
    exec("from spark_jobs import DeltaSink, Pipeline\npipeline = Pipeline('flights')", module.__dict__)
    return module


def test_decorated_functions_are_unchanged() -> None:
    pipeline = Pipeline("flights")

    def departures() -> str:
        return "frame"

    def airlines() -> str:
        return "table"

    def hourly(departures: str) -> str:
        return departures.upper()

    assert pipeline.source(bounded=True)(departures) is departures
    assert pipeline.static(airlines) is airlines
    assert pipeline.static(name="carriers")(airlines) is airlines
    assert pipeline.stage(hourly) is hourly
    assert pipeline.stage(name="daily")(hourly) is hourly
    assert hourly("frame") == "FRAME"


@pytest.mark.parametrize("second", ["hourly", "Hourly"])
def test_two_parts_with_one_name_are_refused(second: str) -> None:
    pipeline = Pipeline("flights")

    @pipeline.source(bounded=True)
    def hourly() -> Any: ...

    with pytest.raises(InvalidPipelineError, match=f"stage '{second}': 'hourly' is declared already"):

        @pipeline.stage(name=second)
        def another(events: Any) -> Any: ...


def test_one_function_declared_twice_in_a_file_is_refused() -> None:
    pipeline = Pipeline("flights")
    for index in range(2):
        if index:
            with pytest.raises(InvalidPipelineError, match="'events' is declared already"):
                pipeline.source(bounded=True)(_events())
        else:
            pipeline.source(bounded=True)(_events())


def _events() -> Any:
    def events() -> Any: ...

    return events


def test_running_a_notebooks_cell_again_replaces_its_stage_in_its_place(notebook: ModuleType) -> None:
    source = "@pipeline.source(bounded=True)\ndef events(): ..."
    stage = "@pipeline.stage(sink=DeltaSink('/{}'))\ndef {}(events): ..."
    for cell in (source, stage.format("a", "first"), stage.format("b", "second"), stage.format("c", "first")):
        exec(cell, notebook.__dict__)
    stages = notebook.pipeline.graph().stages
    assert [(name, stage.sink.address.text) for name, stage in stages.items()] == [("first", "/c"), ("second", "/b")]
    assert stages["first"].function is notebook.first


def test_another_function_of_a_notebook_does_not_replace_a_stage(notebook: ModuleType) -> None:
    exec("@pipeline.source(bounded=True)\ndef events(): ...", notebook.__dict__)
    with pytest.raises(InvalidPipelineError, match="'events' is declared already"):
        exec("@pipeline.source(bounded=True, name='events')\ndef others(): ...", notebook.__dict__)


def test_a_refused_declaration_leaves_the_earlier_one() -> None:
    pipeline = Pipeline("flights")
    with pytest.raises(InvalidPipelineError):
        pipeline.source(bounded=False, event_time="seen")(_events())
    assert pipeline._declarations == {}


def test_a_lambda_needs_a_name() -> None:
    pipeline = Pipeline("flights")
    with pytest.raises(InvalidPipelineError, match="'<lambda>' cannot be a name.*name="):
        pipeline.source(bounded=True)(lambda spark: spark)
    pipeline.source(bounded=True, name="events")(lambda spark: spark)


def test_params_that_are_not_a_model_are_refused() -> None:
    class Params(BaseModel): ...

    assert Pipeline("flights", params=Params).params is Params
    for wrong in (Params(), dict, {"flights": str}):
        with pytest.raises(InvalidPipelineError, match="is not a pydantic model"):
            Pipeline("flights", params=wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("on_end", ["drain", "suspend", *OnEnd])
def test_on_end_is_a_text_or_a_member_of_the_enum(on_end: Any) -> None:
    assert Pipeline("flights", on_end=on_end).on_end is OnEnd(on_end)


def test_an_unknown_on_end_is_refused() -> None:
    with pytest.raises(InvalidPipelineError, match="on_end='stop' is unknown"):
        Pipeline("flights", on_end="stop")  # type: ignore[arg-type]
    with pytest.raises(InvalidPipelineError, match="on_end='stop' is unknown"):
        Pipeline("flights").graph(on_end="stop")  # type: ignore[arg-type]
    with pytest.raises(InvalidPipelineError, match="publish='now' is unknown"):
        Pipeline("flights").graph(publish="now")  # type: ignore[arg-type]


def test_a_pipeline_is_shown_by_its_name() -> None:
    assert repr(Pipeline("flights")) == "Pipeline('flights')"


def test_every_public_name_can_be_imported() -> None:
    assert all(hasattr(spark_jobs, name) for name in spark_jobs.__all__)
    assert spark_jobs.Pipeline is Pipeline
    assert spark_jobs.DeltaSink is DeltaSink


def test_declaring_a_pipeline_needs_neither_spark_nor_airflow() -> None:
    code = (
        "import sys, spark_jobs, spark_jobs.api.load; print({'pyspark', 'airflow', 'deltalake', 'pandas'} & sys.modules.keys())"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "set()"


def test_a_rewired_copy_reads_and_writes_elsewhere_and_leaves_the_pipeline_as_it_is() -> None:
    pipeline = Pipeline("flights")

    @pipeline.source(bounded=True)
    def departures() -> Any: ...

    @pipeline.static
    def airlines() -> Any: ...

    @pipeline.stage(sink=DeltaSink("/public/hourly", name="by_hour"))
    def hourly(departures: Any, airlines: Any) -> Any: ...

    def rows() -> Any: ...

    before = pipeline.graph().describe()
    graph = pipeline.rewired({"departures": rows}, "/tmp/{odd}").graph()
    assert graph.sources[InputName("departures")].function is rows
    assert graph.statics[InputName("airlines")].function is airlines
    assert [str(table) for table in graph.tables(pipeline.bind({})).values()] == ["/tmp/{odd}/by_hour"]
    assert pipeline.graph().describe() == before
    assert pipeline.graph().sources[InputName("departures")].function is departures


def test_a_rewired_source_ends_and_its_rows_become_public_at_its_end() -> None:
    pipeline = Pipeline("flights")
    pipeline.source(bounded=False, event_time="seen", watermark_delay="1 hour", name="events")(_events())
    pace: dict[str, Any] = {"trigger_interval": "1 hour", "max_channel_bytes": 1, "max_files_per_trigger": 1}
    pipeline.stage(name="passed", **pace)(lambda events: events)
    pipeline.stage(sink=DeltaSink("/copied"), name="copied")(lambda passed: passed)
    graph = pipeline.rewired({"events": _events()}, "/tables").graph()
    assert not graph.unbounded
    assert graph.stages[StageName("passed")].limits == RateLimits(max_files_per_trigger=1)
    assert [sink.publish for sink in graph.sinks.values()] == [Publish.FINAL]
    assert pipeline.graph().unbounded


@pytest.mark.parametrize("name", ["arrivals", "hourly"])
def test_only_inputs_can_be_rewired(name: str) -> None:
    pipeline = Pipeline("flights")

    @pipeline.source(bounded=True)
    def departures() -> Any: ...

    @pipeline.stage(sink=DeltaSink("/public/hourly"))
    def hourly(departures: Any) -> Any: ...

    with pytest.raises(InvalidPipelineError, match=f"'{name}' is not one of its inputs.*departures"):
        pipeline.rewired({name: lambda: None}, "/tmp/tables")
