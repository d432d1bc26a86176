"""Compares the sources of a start with those that the checkpoint has read, and decides about replaced sources.

Spark continues after the offsets of the last batch, even in another source. A table that was dropped and loaded again has other rows under
the same versions. A topic that was created again has other records under the same offsets. So the *identity* of each source is in the round
and in every manifest, and is compared before anything is staged.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from spark_jobs.api.graph import Graph
from spark_jobs.api.refusals import suggestion
from spark_jobs.protocol.documents import Manifest, RoundDocument
from spark_jobs.protocol.errors import BEGIN_ANEW, InvalidParameterError, RejectedError
from spark_jobs.protocol.ids import InputName, RoundNumber
from spark_jobs.protocol.known_sources import KnownSource
from spark_jobs.protocol.masking import Mask, unmasked
from spark_jobs.runtime.inputs.inputs import source_frame
from spark_jobs.runtime.inputs.source_kind import another_source
from spark_jobs.runtime.inputs.source_kinds import kind_of, kind_of_known
from spark_jobs.runtime.spark.plan import Leaf, streaming_leaves

Sources = Mapping[InputName, tuple[KnownSource, ...]]


@dataclass(frozen=True)
class FoundSource:
    """A present source."""

    frame: DataFrame
    leaves: tuple[Leaf, ...]
    known: tuple[KnownSource, ...]
    begins_by_itself: bool
    """True if its options decide where reading begins, and not another source or an old query."""

    def resolved(self, name: InputName) -> tuple[KnownSource, ...]:
        """Returns the identity of the source, with the position where reading begins if it begins now."""
        if not self.begins_by_itself:
            return self.known
        streams = zip(self.leaves, self.known, strict=True)
        return tuple(kind_of(leaf).resolve(name, self.frame, leaf, known) for leaf, known in streams)


@dataclass(frozen=True)
class SettledSources:
    """The sources that the stages of a start read."""

    sources: Sources = field(default_factory=dict)
    before: Sources = field(default_factory=dict)
    """The identities of the sources at the checkpoint that the start goes on from."""
    renewed: frozenset[InputName] = frozenset()
    """The sources that the stages have read before, and now read from their beginning."""
    statics: frozenset[InputName] = frozenset()
    """The static inputs that the stages now read at their newest version."""

    @property
    def renewed_inputs(self) -> frozenset[InputName]:
        """Returns all inputs that the stages read as new ones: the renewed sources and the static inputs."""
        return self.renewed | self.statics

    @property
    def replaces_round(self) -> bool:
        """Returns True if an interrupted round cannot go on: its later batches have read other inputs."""
        return bool(self.renewed_inputs)


def check_names(graph: Graph, names: Collection[InputName], *, statics: bool = False) -> None:
    """Refuses options with names that are not sources.

    Args:
        graph: The pipeline.
        names: The names.
        statics: True if the names of static inputs are right, too.

    Raises:
        InvalidParameterError: A name is not right.
    """
    right = [*graph.sources, *(graph.statics if statics else ())]
    for name in names:
        if name not in right:
            raise InvalidParameterError(
                f"Pipeline '{graph.pipeline}' has no source{' or static input' if statics else ''} '{name}'.",
                remedy=suggestion(name, right),
                source=name,
            )


def ended_sources(
    graph: Graph, state: Manifest | None, round_number: RoundNumber | None, to_renew: Collection[InputName] = ()
) -> Sources:
    """Returns the earlier identity of sources that no stage reads any more. They may be gone.

    Args:
        graph: The pipeline.
        state: Checkpoint whose state a start continues.
        round_number: Round that goes on; None if one begins.
        to_renew: Sources that are read from their beginning, also by stages that have ended in the round.
    """
    if state is None:
        return {}

    def is_left(source: InputName) -> bool:
        goes_on = state.round == round_number and source not in to_renew
        readers = [stage.name for stage in graph.stages.values() if any(node.name == source for node in stage.inputs.values())]
        cuts = [state.stages.get(name) for name in readers]
        return all(cut is not None and (source in cut.ended or (cut.finished and goes_on)) for cut in cuts)

    return {name: known for name, known in state.sources.items() if is_left(name)}


def find_sources(
    graph: Graph,
    session: SparkSession,
    params: Any,
    mask: Mask,
    *,
    before: Sources,
    ended: Sources,
    adopted: Collection[InputName],
) -> dict[InputName, FoundSource]:
    """Reads the identity of every source that is still read. Writes nothing.

    Args:
        graph: The pipeline.
        session: Session of the driver.
        params: Parameters of the pipeline.
        mask: Removes secrets from the records.
        before: Earlier identities of the sources.
        ended: Earlier identities of sources that are not read any more: see :func:`ended_sources`.
        adopted: Sources that continue an old query.

    Raises:
        InvalidPipelineError: A source cannot be read as declared.
        StorageError: The service of a source does not answer.
    """
    found = {}
    for name, source in graph.sources.items():
        frame = source_frame(source, session, params)
        if name in ended:
            found[name] = FoundSource(frame, (), ended[name], begins_by_itself=False)
            continue
        leaves = tuple(streaming_leaves(frame))
        earlier = before.get(name, ())
        streams = zip(leaves, earlier if len(earlier) == len(leaves) else (None,) * len(leaves), strict=True)
        known = tuple(kind_of(leaf).identify(name, frame, leaf, was, mask) for leaf, was in streams)
        found[name] = FoundSource(frame, leaves, known, source.follows is None and name not in adopted)
    return found


def find_folders(graph: Graph, session: SparkSession, params: Any) -> Sources:
    """Returns the identities of the streams that read a folder or a table. Other kinds are left out, because their service may be away.

    Raises:
        InvalidPipelineError: A source cannot be read as declared.
        StorageError: The storage of a source does not answer.
    """
    found = {}
    for name, source in graph.sources.items():
        frame = source_frame(source, session, params)
        streams = [(kind_of(leaf), leaf) for leaf in streaming_leaves(frame)]
        found[name] = tuple(kind.identify(name, frame, leaf, None, unmasked) for kind, leaf in streams if kind.has_place)
    return found


def settle(
    found: Mapping[InputName, FoundSource],
    before: Sources,
    new_sources: Collection[InputName],
    drained: Manifest | None = None,
    *,
    to_renew: Collection[InputName] = (),
) -> SettledSources:
    """Compares the sources of a start with those that were read before.

    Args:
        found: The present sources.
        before: Earlier identities of the sources.
        new_sources: Sources that may be different ones.
        drained: Checkpoint that the start goes on from, if it has drained stages. If a source is read from its beginning, such stages
            would drop its rows as late.
        to_renew: Sources that are read from their beginning in any case, and static inputs that are read at their newest version.

    Raises:
        RejectedError: A source is a different one and not in ``new_sources``, or stages are drained. Nothing was changed.
    """
    others = {name: why for name, now in found.items() if (why := difference(before.get(name), now.known))}
    if refused := {name: why for name, why in others.items() if name not in new_sources}:
        raise another_source(refused, may_be_new=drained is None)
    renewed = frozenset(others) | {name for name in to_renew if name in before and found[name].leaves}
    if drained is not None:
        refuse_drained(drained, renewed)
    settled = {name: _settled(name, now, None if name in renewed else before.get(name)) for name, now in found.items()}
    return SettledSources(settled, before, renewed, frozenset(to_renew).difference(found))


def difference(before: tuple[KnownSource, ...] | None, now: tuple[KnownSource, ...]) -> str | None:
    """Returns a description of the difference between a source and its earlier identity, or None if it is the same or new."""
    if before is None:
        return None
    if len(before) != len(now):
        return f"reads {len(now)} streams, but before it read {len(before)}"
    streams = zip(before, now, strict=True)
    return next((why for old, new in streams if (why := kind_of_known(new).difference(old, new))), None)


def others_than(before: Sources, now: Sources) -> frozenset[InputName]:
    """Returns the sources that are different ones than before."""
    return frozenset(name for name, known in now.items() if difference(before.get(name), known))


def sources_before(round_document: RoundDocument | None, newest: Manifest | None) -> Sources:
    """Returns the identities of the sources in the round that goes on, or at the checkpoint that is continued."""
    if round_document is None:
        return newest.sources if newest else {}
    if newest is not None and newest.round == round_document.round and newest.origin is None:
        return {**round_document.sources, **newest.sources}
    return round_document.sources


def refuse_drained(newest: Manifest, renewed: Collection[InputName]) -> None:
    """Refuses to read a source from its beginning in stages that would drop all its rows as late.

    Raises:
        RejectedError: A stage is drained.
    """
    drained = sorted(name for name, cut in newest.stages.items() if cut.drain_batches)
    if drained and renewed:
        raise RejectedError(
            f"Source '{min(renewed)}' cannot be read as a new one: stage '{drained[0]}' is drained and would drop its rows.",
            exists=f"Checkpoint {newest.checkpoint}.",
            safe="Nothing was staged.",
            remedy=f"Go back to the earlier source, or {BEGIN_ANEW}.",
            stages=drained,
        )


def _settled(name: InputName, now: FoundSource, before: tuple[KnownSource, ...] | None) -> tuple[KnownSource, ...]:
    if before is None:
        return now.resolved(name)
    return tuple(kind_of_known(new).renewed(old, new) for old, new in zip(before, now.known, strict=True))
