"""Describes in OpenLineage's terms the tables that a task has published, and the inputs of their rows.

Everything comes from the documents of a home: no table and no source is opened. Airflow's OpenLineage provider calls for it when a task
has ended. Without that provider this module cannot be imported, and nothing imports it.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import unquote

import attrs
from airflow.providers.openlineage.extractors.base import OperatorLineage
from openlineage.client.event_v2 import InputDataset, OutputDataset
from openlineage.client.facet_v2 import (
    DatasetFacet,
    RunFacet,
    dataset_version_dataset,
    output_statistics_output_dataset,
    schema_dataset,
)

from airflow_provider.facts import HomeResult
from spark_jobs.protocol.documents import Manifest
from spark_jobs.protocol.ids import InputName, SinkName
from spark_jobs.protocol.known_sources import KnownDelta, KnownFiles, KnownKafka
from spark_jobs.protocol.pins import DeltaPin, FilesPin
from spark_jobs.storage.object_store_kinds import CANONICAL_SCHEMES
from spark_jobs.storage.table_uris import spark_path

RUN_FACET = "streamPipeline"
"""The key of :class:`StreamPipelineRunFacet` among the facets of a run."""


@attrs.define
class StreamPipelineRunFacet(RunFacet):
    """The checkpoints that a task has completed or published."""

    homes: dict[str, dict[str, Any]]
    """By home: ``run``, ``round``, ``attempt``, ``checkpoint``, ``drained``, ``behind``, ``exact`` and ``losses`` of an XCom."""


_SHOWN = ("run", "round", "attempt", "checkpoint", "drained", "behind", "exact", "losses")


class _Input(NamedTuple):
    """A dataset that a source or a static input reads."""

    namespace: str
    name: str
    version: int | None = None
    table_schema: str | None = None
    """The columns in Delta's JSON."""


def lineage_of(results: Iterable[HomeResult]) -> OperatorLineage[Any, Any]:
    """Returns the datasets and the run facet of a task; empty without results."""
    inputs, outputs, homes = dict[tuple[str, str], InputDataset](), list[OutputDataset](), dict[str, dict[str, Any]]()
    for facts, manifest in results:
        homes[facts["home"]] = {name: facts[name] for name in _SHOWN if name in facts}
        outputs += _outputs(facts, manifest)
        for found in _inputs(manifest) if manifest is not None else ():
            facets = _facets(found.version, found.table_schema)
            inputs[found.namespace, found.name] = InputDataset(namespace=found.namespace, name=found.name, facets=facets)
    run_facets = {RUN_FACET: StreamPipelineRunFacet(homes=homes)} if homes else {}
    return OperatorLineage(inputs=list(inputs.values()), outputs=outputs, run_facets=run_facets)


def dataset_name(place: str) -> tuple[str, str] | None:
    """Returns the namespace and the name of a path or URL, as OpenLineage's Spark integration names it; None for a relative path.

    Args:
        place: The path or URL, without escapes.
    """
    scheme, separator, rest = place.partition("://")
    if not separator:
        path = place.removeprefix("file:")
        return ("file", path) if path.startswith("/") else None
    authority, slash, path = rest.partition("/")
    if scheme == "file":
        return "file", slash + path
    if scheme in CANONICAL_SCHEMES:  # a name in an object store begins without a slash
        return f"{CANONICAL_SCHEMES[scheme]}://{authority}", path
    return f"{scheme}://{authority}", slash + path


def _outputs(facts: Mapping[str, Any], manifest: Manifest | None) -> Iterator[OutputDataset]:
    """Yields the tables that the task has published. A sink whose rows are only staged has no version."""
    for sink, result in facts["sinks"].items():
        if result["version"] is None or (named := dataset_name(spark_path(result["table"]))) is None:
            continue
        statistics = output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(rowCount=result["rows"])
        yield OutputDataset(
            namespace=named[0],
            name=named[1],
            facets=_facets(result["version"], None if manifest is None else _table_schema(manifest, SinkName(sink))),
            outputFacets={} if result["rows"] is None else {"outputStatistics": statistics},
        )


def _table_schema(manifest: Manifest, sink: SinkName) -> str | None:
    """Returns the columns of a sink's table when its newest rows were staged; None if the checkpoint does not know them."""
    cut = manifest.sinks.get(sink)
    if cut is None:
        return None
    if cut.staged_for:
        return cut.staged_for[-1].table_schema
    stage = manifest.stages.get(cut.stage)
    staged_for = stage.channel.staged_for if stage is not None else None
    return staged_for.since[-1].shape.table_schema if staged_for is not None else None


def _inputs(manifest: Manifest) -> Iterator[_Input]:
    """Yields the datasets that the pipeline reads. Streams without a name outside the pipeline are left out."""
    for source, known in manifest.sources.items():
        versions = {pin.table: pin.version for pin in manifest.inputs.get(source, ()) if isinstance(pin, DeltaPin)}
        for stream in known:
            if isinstance(stream, KnownDelta):
                shape = None if stream.shape is None else stream.shape.table_schema
                yield from _placed(stream.path, versions.get(stream.table), shape)
            elif isinstance(stream, KnownFiles):
                yield from _placed(unquote(stream.path))
            elif isinstance(stream, KnownKafka):
                yield from (_Input(f"kafka://{stream.cluster}", topic) for topic in stream.topics)
    for name in manifest.inputs.keys() - manifest.sources.keys():
        yield from _statics(manifest, name)


def _statics(manifest: Manifest, name: InputName) -> Iterator[_Input]:
    for pin in manifest.inputs[name]:
        if isinstance(pin, DeltaPin):
            yield from _placed(pin.path, pin.version)
        elif isinstance(pin, FilesPin):
            yield from _placed(pin.path)


def _placed(place: str, version: int | None = None, table_schema: str | None = None) -> Iterator[_Input]:
    if (named := dataset_name(place)) is not None:
        yield _Input(*named, version, table_schema)


def _facets(version: int | None, table_schema: str | None) -> dict[str, DatasetFacet]:
    facets: dict[str, DatasetFacet] = {}
    if version is not None:
        facets["version"] = dataset_version_dataset.DatasetVersionDatasetFacet(datasetVersion=str(version))
    if table_schema is not None:
        facets["schema"] = schema_dataset.SchemaDatasetFacet(fields=_fields(json.loads(table_schema)))
    return facets


def _fields(struct: Mapping[str, Any]) -> list[schema_dataset.SchemaDatasetFacetFields]:
    """Returns the fields of a struct in Delta's JSON, with those of nested structs."""
    return [
        schema_dataset.SchemaDatasetFacetFields(name=field["name"], type=_type_name(field["type"]), fields=_nested(field["type"]))
        for field in struct["fields"]
    ]


def _type_name(kind: Any) -> str:
    return kind if isinstance(kind, str) else str(kind["type"])


def _nested(kind: Any) -> list[schema_dataset.SchemaDatasetFacetFields]:
    """Returns the fields inside a type; those of an array or a map have OpenLineage's names for elements, keys and values."""
    if isinstance(kind, str):
        return []
    if kind["type"] == "struct":
        return _fields(kind)
    parts = {"array": {"_element": "elementType"}, "map": {"key": "keyType", "value": "valueType"}}.get(kind["type"], {})
    return [
        schema_dataset.SchemaDatasetFacetFields(name=name, type=_type_name(kind[part]), fields=_nested(kind[part]))
        for name, part in parts.items()
    ]
