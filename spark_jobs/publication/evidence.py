"""What is public: read back from the tables' own logs, never remembered."""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from shlex import quote

from spark_jobs.checkpoint.store import CheckpointStore
from spark_jobs.control.channel import Channel
from spark_jobs.control.home import open_home
from spark_jobs.protocol.documents import Manifest, SinkCut
from spark_jobs.protocol.errors import NotFoundError, RejectedError
from spark_jobs.protocol.ids import AppId, CheckpointId, SinkName
from spark_jobs.publication.delta_rs import OpenTable, open_table
from spark_jobs.publication.pending import CLOSED, chosen_manifest, is_due, is_unfinished, ordered_sinks
from spark_jobs.storage.files import Files


def published_checkpoints(manifest: Manifest) -> dict[SinkName, CheckpointId | None]:
    """The checkpoint that each sink's table has reached in the manifest's incarnation, None where nothing is public.

    :data:`~spark_jobs.publication.pending.CLOSED` where the incarnation was closed.

    Raises:
        NotFoundError: A table is not there.
        StorageError: The storage fails.
    """
    return {sink: open_table(cut.table).transaction_version(cut.app) for sink, cut in manifest.sinks.items()}


def version_with(cut: SinkCut, checkpoint: CheckpointId) -> int | None:
    """The first Delta version of a sink's table in which ``checkpoint`` is public; None if it is not.

    Where older log entries were cleaned it is the first version that can still be read.

    Raises:
        NotFoundError: The table is not there.
        StorageError: The storage fails.
    """
    found = _first_version(cut, checkpoint)
    return None if found is None else found[0]


def line_after(store: CheckpointStore, checkpoint: CheckpointId) -> Manifest | None:
    """The head, where ``checkpoint`` was one before it that was public in every sink, and may so be discarded; None where it was not.

    The tables tell: all of them have reached it, and one has a transaction of that very number. An incarnation's app id carries only
    the numbers of its own checkpoints; a higher one alone may be another incarnation's.

    Raises:
        NotFoundError: A table is not there.
        StorageError: The storage fails.
    """
    head = store.head()
    if head is None:
        return None
    found = [_first_version(cut, checkpoint) for cut in head.sinks.values()]
    return head if None not in found and checkpoint in {each[1] for each in found if each} else None


def before_closing(table: OpenTable, app: AppId) -> OpenTable:
    """The table as it was when the line of ``app`` was closed, just before; ``table`` itself where it is not closed.

    What has published since is what has another version in ``table``.

    Raises:
        NotFoundError: The log entries of then were cleaned: what had been published, nobody knows.
        StorageError: The storage fails.
    """
    closed = _search(table, app, CLOSED)
    return table if closed is None else open_table(table.facts.uri, closed[0] - 1)


@dataclass(frozen=True, eq=False)
class ConsistentVersions(Mapping[SinkName, tuple[str, int]]):
    """Per sink the table's URI and the Delta version right after one checkpoint became public.

    Args:
        checkpoint: The checkpoint.
        versions: What the mapping has.
        behind: The sinks whose tables show less than the others. Their stages were failing or slow when the checkpoint was cut, or are
            fed by such stages; or they have a hold, and their tables refuse the checkpoint. Of these the mapping has the version that
            shows what the table has, or nothing. All other tables show the same prefix of each source that one stage reads.
    """

    checkpoint: CheckpointId
    versions: Mapping[SinkName, tuple[str, int]]
    behind: tuple[SinkName, ...] = ()

    def __getitem__(self, sink: SinkName) -> tuple[str, int]:
        return self.versions[sink]

    def __iter__(self) -> Iterator[SinkName]:
        return iter(self.versions)

    def __len__(self) -> int:
        return len(self.versions)


def versions_with(manifest: Manifest) -> ConsistentVersions | None:
    """Returns the versions right after a checkpoint became public; None unless each sink has one of its own, or a hold.

    Raises:
        NotFoundError: A table is not there.
        StorageError: The storage fails.
    """
    versions, held = dict[SinkName, tuple[str, int]](), set[SinkName]()
    for sink in ordered_sinks(manifest):
        cut = manifest.sinks[sink]
        version = _own_version(cut, manifest.checkpoint)
        if version is None:
            may_be_held = cut.hold is not None and is_due(manifest, cut.publish)
            if not may_be_held or _first_version(cut, manifest.checkpoint) is not None:
                return None
            held.add(sink)
            version = _newest_version(cut)
        if version is not None:
            versions[sink] = (cut.table, version)
    if len(held) == len(manifest.sinks):
        return None
    return ConsistentVersions(manifest.checkpoint, versions, tuple(sorted(held.union(manifest.sinks_behind))))


def consistent_versions(home: str | Files, checkpoint: CheckpointId | None = None) -> ConsistentVersions:
    """One consistent cut over all tables of a pipeline, as the Delta versions right after one checkpoint was published.

    Reading each table ``versionAsOf`` that version shows the rows of exactly this checkpoint and those before it, and whatever
    others have appended until then. Tables that show less than the others are named.

    Args:
        home: The home, or its URL.
        checkpoint: By default the newest one that is public in every sink.

    Returns:
        Per sink the table's URI and the Delta version; :attr:`ConsistentVersions.behind` has the sinks whose tables show less.

    Raises:
        RejectedError: The checkpoint does not exist, is not public in every sink, or became public together with a later one; or
            none is public in every sink.
        CorruptDocumentError: The checkpoint's manifest cannot be used.
        NotFoundError: A table is not there.
    """
    files = open_home(home) if isinstance(home, str) else home
    store = CheckpointStore(files)
    if checkpoint is None:
        candidates = store.manifests()[::-1]
        found = (public for manifest in candidates if (public := versions_with(manifest)))
        if newest := next(found, None):
            return newest
        raise _nothing_public(files, candidates)
    manifest = chosen_manifest(store, checkpoint)
    if public := versions_with(manifest):
        return public
    lacking = [sink for sink, cut in manifest.sinks.items() if _own_version(cut, checkpoint) is None]
    staged = [sink for sink in lacking if _first_version(manifest.sinks[sink], checkpoint) is None]
    if staged:
        exists, remedy = f"Its rows are staged only in {', '.join(staged)}.", _publishing(files, [manifest])
    else:
        exists = "It became public together with a later one."
        remedy = "Ask for the newest consistent versions: leave the checkpoint out."
    raise RejectedError(
        f"Checkpoint {checkpoint} has no Delta version of its own in {', '.join(lacking) or 'any sink'}.",
        exists=exists,
        safe="Nothing was changed.",
        remedy=remedy,
        checkpoint=checkpoint,
        sinks=lacking,
    )


def _publishing(home: Files, newest_first: Iterable[Manifest]) -> str:
    """Returns how the newest of these checkpoints becomes public that does not have to wait for the end of its round."""
    publishable = (each for each in newest_first if not any(is_unfinished(each, sink) for sink in each.sinks))
    if (found := next(publishable, None)) is not None:
        return f"Publish it: spark-jobs publish --home {quote(home.url)} --checkpoint {found.checkpoint}"
    return (
        "Run the pipeline on: the rows become public once the round has ended, or is drained. See how far it is: "
        f"spark-jobs status --home {quote(home.url)}"
    )


def _nothing_public(home: Files, manifests: Sequence[Manifest]) -> RejectedError:
    """Says why there is no cut over all tables, and what makes one; ``manifests`` are the complete checkpoints, newest first."""
    url = home.url
    if manifests:
        exists = f"The newest complete checkpoint is {manifests[0].checkpoint}; its rows, or some of them, are staged only."
        remedy = _publishing(home, [each for each in manifests if each.incarnation == manifests[0].incarnation])
    elif Channel(home).pipeline() is not None:
        exists, remedy = (
            "It has no complete checkpoint.",
            f"Run the pipeline, and see how far it is: spark-jobs status --home {quote(url)}",
        )
    else:
        exists, remedy = (
            "It is not the home of a pipeline: it has no pipeline.json.",
            "Check the path. The first 'spark-jobs run' makes a home.",
        )
    return RejectedError(
        f"No checkpoint of {url} is public in every sink.",
        exists=exists,
        safe="Nothing was changed.",
        remedy=remedy,
        home=url,
        checkpoints=[each.checkpoint for each in manifests],
    )


def _own_version(cut: SinkCut, checkpoint: CheckpointId) -> int | None:
    found = _first_version(cut, checkpoint)
    return found[0] if found is not None and found[1] == checkpoint else None


def _newest_version(cut: SinkCut) -> int | None:
    """Returns the Delta version right after the newest checkpoint that the table has became public; None if it has none."""
    reached = open_table(cut.table).transaction_version(cut.app)
    found = None if reached is None else _first_version(cut, reached)
    return None if found is None else found[0]


def _first_version(cut: SinkCut, checkpoint: CheckpointId) -> tuple[int, CheckpointId] | None:
    """The first Delta version that has reached ``checkpoint``, and what it has reached."""
    found = _search(open_table(cut.table), cut.app, checkpoint)
    return None if found is None or found[1] == CLOSED else found  # closing an incarnation makes nothing of it public


def _search(latest: OpenTable, app: AppId, checkpoint: CheckpointId) -> tuple[int, CheckpointId] | None:
    """The first version of a table in which ``app`` has reached ``checkpoint``, and what it has reached; None where it has not.

    An app id's version only grows, so this is a binary search; it begins near the end, where what is asked for usually is.
    """

    @cache
    def reached(version: int) -> CheckpointId:
        try:
            return open_table(latest.facts.uri, version).transaction_version(app) or CheckpointId(0)
        except NotFoundError:
            return CheckpointId(0)  # cleaned, so older than every version that still can be read

    now = latest.transaction_version(app)
    if now is None or now < checkpoint:
        return None
    last = latest.facts.version
    distance = 1
    while distance <= last and reached(last - distance) >= checkpoint:
        distance *= 2
    first = max(0, last - distance)
    version = first + bisect_left(range(first, last), checkpoint, key=lambda v: reached(v))
    return version, now if version == last else reached(version)
