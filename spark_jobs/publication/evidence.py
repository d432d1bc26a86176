"""Reads the public state back from the tables' own logs."""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from shlex import quote

from spark_jobs.checkpoint.checkpoint_store import CheckpointStore
from spark_jobs.control.channel import Channel
from spark_jobs.control.home import open_home
from spark_jobs.control.losses import LossLedger
from spark_jobs.protocol.checkpoint_requests import CheckpointedSink
from spark_jobs.protocol.documents import Manifest, SinkCut
from spark_jobs.protocol.errors import NotFoundError, RejectedError
from spark_jobs.protocol.ids import AppId, CheckpointId, LossId, SinkName
from spark_jobs.publication.delta_rs import OpenTable, open_table
from spark_jobs.publication.pending import CLOSED, chosen_manifest, is_due, is_unfinished, ordered_sinks
from spark_jobs.storage.files import Files


def published_checkpoints(manifest: Manifest) -> dict[SinkName, CheckpointId | None]:
    """Returns the checkpoint that each sink's table has reached in the manifest's incarnation, or None.

    It is :data:`~spark_jobs.publication.pending.CLOSED` if the incarnation was closed.

    Raises:
        NotFoundError: A table does not exist.
        StorageError: The storage fails.
    """
    return {sink: open_table(cut.table).transaction_version(cut.app) for sink, cut in manifest.sinks.items()}


def checkpointed_sinks(manifest: Manifest) -> dict[SinkName, CheckpointedSink]:
    """Returns the rows that a checkpoint has added to each sink, and the versions in which they are public."""
    return {sink: _checkpointed(cut, manifest.checkpoint) for sink, cut in manifest.sinks.items()}


def _checkpointed(cut: SinkCut, checkpoint: CheckpointId) -> CheckpointedSink:
    try:
        version = version_with(cut, checkpoint)
    except NotFoundError:
        version = None  # the table is gone; the checkpoint is not
    return CheckpointedSink(table=cut.table, version=version, rows=cut.actions.rows, size_bytes=cut.actions.size_bytes)


def version_with(cut: SinkCut, checkpoint: CheckpointId) -> int | None:
    """Returns the first Delta version of a sink's table in which ``checkpoint`` is public, or None.

    If older log entries were cleaned, it is the first readable version.

    Raises:
        NotFoundError: The table does not exist.
        StorageError: The storage fails.
    """
    found = _first_version(cut, checkpoint)
    return None if found is None else found[0]


def head_after_public(store: CheckpointStore, checkpoint: CheckpointId) -> Manifest | None:
    """Returns the head if ``checkpoint`` was an earlier checkpoint that became public in every sink; otherwise None.

    The checkpoint itself may be discarded, because the tables show this: all of them have reached it, and one has a transaction of exactly
    that number. The app id of an incarnation only has numbers of its own checkpoints. A higher number alone could come from another
    incarnation.

    Raises:
        NotFoundError: A table does not exist.
        StorageError: The storage fails.
    """
    head = store.head()
    if head is None:
        return None
    found = [_first_version(cut, checkpoint) for cut in head.sinks.values()]
    return head if None not in found and checkpoint in {each[1] for each in found if each} else None


def before_closing(table: OpenTable, app: AppId) -> OpenTable:
    """Returns the table just before the incarnation of ``app`` was closed, or ``table`` if it is not closed.

    App ids with another version in ``table`` have published since then.

    Raises:
        NotFoundError: The log entries of that time were cleaned. The published checkpoint is unknown.
        StorageError: The storage fails.
    """
    closed = _search(table, app, CLOSED)
    return table if closed is None else open_table(table.facts.uri, closed[0] - 1)


@dataclass(frozen=True, eq=False)
class ConsistentVersions(Mapping[SinkName, tuple[str, int]]):
    """The table's URI and the Delta version right after one checkpoint became public, by sink.

    Args:
        checkpoint: The checkpoint.
        versions: The entries of the mapping.
        behind: The sinks whose tables show less than the others. Their stages, or stages upstream, were failing or slow at the cut, or
            their tables refused rows and were held. The mapping has the version with the rows that such a table has, or no entry. All
            other tables show the same prefix of each source that only one stage reads.
        losses: The losses whose rows the checkpoint lacks. Those that a person has accepted are not among them.
    """

    checkpoint: CheckpointId
    versions: Mapping[SinkName, tuple[str, int]]
    behind: tuple[SinkName, ...] = ()
    losses: tuple[LossId, ...] = ()

    def __getitem__(self, sink: SinkName) -> tuple[str, int]:
        return self.versions[sink]

    def __iter__(self) -> Iterator[SinkName]:
        return iter(self.versions)

    def __len__(self) -> int:
        return len(self.versions)

    @property
    def exact(self) -> bool:
        """Returns True if the checkpoint lacks no rows, except those whose loss a person has accepted."""
        return not self.losses


def versions_with(manifest: Manifest) -> ConsistentVersions | None:
    """Returns the versions right after a checkpoint became public, or None unless each sink has its own or was held.

    Raises:
        NotFoundError: A table does not exist.
        StorageError: The storage fails.
    """
    versions, held = dict[SinkName, tuple[str, int]](), set[SinkName]()
    for sink in ordered_sinks(manifest):
        cut = manifest.sinks[sink]
        version = _own_version(cut, manifest.checkpoint)
        if version is None:
            is_held = sink in manifest.held and is_due(manifest, cut.publish)
            if not is_held or _first_version(cut, manifest.checkpoint) is not None:
                return None
            held.add(sink)
            version = _newest_version(cut)
        if version is not None:
            versions[sink] = (cut.table, version)
    if len(held) == len(manifest.sinks):
        return None
    return ConsistentVersions(manifest.checkpoint, versions, tuple(sorted(held.union(manifest.sinks_behind))))


def is_shown(manifest: Manifest) -> bool:
    """Returns True if every table has its own version for a checkpoint.

    Raises:
        NotFoundError: A table does not exist.
        StorageError: The storage fails.
    """
    return bool(manifest.sinks) and all(_own_version(cut, manifest.checkpoint) is not None for cut in manifest.sinks.values())


def consistent_versions(home: str | Files, checkpoint: CheckpointId | None = None, *, exact: bool = False) -> ConsistentVersions:
    """Returns a consistent cut over all tables of a pipeline: the Delta versions right after one checkpoint was published.

    Read each table with ``versionAsOf`` that version. It shows the rows of exactly this checkpoint and all earlier ones, and rows that
    others have appended until then. Tables that show less than the others are named.

    Args:
        home: The home, or its URL.
        checkpoint: Number of the checkpoint; by default the newest one that is public in every sink.
        exact: True: only a checkpoint that lacks no rows, except those whose loss a person has accepted. See ``spark-jobs losses``.

    Returns:
        The table's URI and the Delta version by sink. :attr:`ConsistentVersions.behind` has the sinks whose tables show less.

    Raises:
        RejectedError: The checkpoint does not exist, is not public in every sink, or became public together with a later one; or
            none is public in every sink. Or with ``exact``, it lacks rows.
        CorruptDocumentError: The checkpoint's manifest cannot be used.
        NotFoundError: A table does not exist.
    """
    files = open_home(home) if isinstance(home, str) else home
    store, ledger = CheckpointStore(files), LossLedger(files)
    if checkpoint is None:
        candidates = store.manifests()[::-1]
        newest = None
        for manifest in candidates:
            if public := versions_with(manifest):
                found = replace(public, losses=ledger.lacking(manifest))
                if found.exact or not exact:
                    return found
                newest = newest or found
        raise _inexact(files, newest) if newest else _nothing_public(files, candidates)
    manifest = chosen_manifest(store, checkpoint)
    if public := versions_with(manifest):
        found = replace(public, losses=ledger.lacking(manifest))
        if exact and not found.exact:
            raise _inexact(files, found)
        return found
    lacking = [sink for sink, cut in manifest.sinks.items() if _own_version(cut, checkpoint) is None]
    staged = [sink for sink in lacking if _first_version(manifest.sinks[sink], checkpoint) is None]
    if staged:
        exists, remedy = f"Its rows are only staged in {', '.join(staged)}.", _publishing(files, [manifest])
    else:
        exists = "It became public together with a later one."
        remedy = "Leave the checkpoint out to get the newest consistent versions."
    raise RejectedError(
        f"Checkpoint {checkpoint} has no Delta version of its own in {', '.join(lacking) or 'any sink'}.",
        exists=exists,
        remedy=remedy,
        checkpoint=checkpoint,
        sinks=lacking,
    )


def _inexact(home: Files, found: ConsistentVersions) -> RejectedError:
    count = f"{len(found.losses)} {'loss' if len(found.losses) == 1 else 'losses'}"
    return RejectedError(
        f"Checkpoint {found.checkpoint} is not exact: it lacks the rows of {count}, such as {found.losses[0]}.",
        exists="Its tables can be read without exact=True.",
        safe="Nothing was changed.",
        remedy=f"Backfill or accept them: spark-jobs losses --home {quote(home.url)}",
        checkpoint=found.checkpoint,
        losses=list(found.losses),
    )


def _publishing(home: Files, newest_first: Iterable[Manifest]) -> str:
    """Returns a text that says how to publish the newest checkpoint that need not wait for the end of its round."""
    publishable = (each for each in newest_first if not any(is_unfinished(each, sink) for sink in each.sinks))
    if (found := next(publishable, None)) is not None:
        return f"Publish it: spark-jobs publish --home {quote(home.url)} --checkpoint {found.checkpoint}"
    return (
        "Run the pipeline on: the rows become public when the round has ended or is drained. To see its progress: "
        f"spark-jobs status --home {quote(home.url)}"
    )


def _nothing_public(home: Files, manifests: Sequence[Manifest]) -> RejectedError:
    """Returns the error if there is no cut over all tables. ``manifests`` are the complete checkpoints, newest first."""
    url = home.url
    if manifests:
        exists = f"The newest complete checkpoint is {manifests[0].checkpoint}; some or all of its rows are only staged."
        remedy = _publishing(home, [each for each in manifests if each.incarnation == manifests[0].incarnation])
    elif Channel(home).pipeline() is not None:
        exists, remedy = (
            "The home has no complete checkpoint.",
            f"Run the pipeline. To see its progress: spark-jobs status --home {quote(url)}",
        )
    else:
        exists, remedy = (
            "The directory is not the home of a pipeline: it has no pipeline.json.",
            "Check the path. The first 'spark-jobs run' creates a home.",
        )
    return RejectedError(
        f"No checkpoint of {url} is public in every sink.",
        exists=exists,
        remedy=remedy,
        home=url,
        checkpoints=[each.checkpoint for each in manifests],
    )


def _own_version(cut: SinkCut, checkpoint: CheckpointId) -> int | None:
    """Returns the Delta version that made just this checkpoint public. None if it is not public, or became so together with a later one."""
    found = _first_version(cut, checkpoint)
    return found[0] if found is not None and found[1] == checkpoint else None


def _newest_version(cut: SinkCut) -> int | None:
    """Returns the Delta version right after the table's newest checkpoint became public, or None if it has none."""
    reached = open_table(cut.table).transaction_version(cut.app)
    found = None if reached is None else _first_version(cut, reached)
    return None if found is None else found[0]


def _first_version(cut: SinkCut, checkpoint: CheckpointId) -> tuple[int, CheckpointId] | None:
    """Returns the first Delta version that has reached ``checkpoint``, and the checkpoint that it has reached."""
    found = _search(open_table(cut.table), cut.app, checkpoint)
    return None if found is None or found[1] == CLOSED else found  # closing an incarnation publishes nothing


def _search(latest: OpenTable, app: AppId, checkpoint: CheckpointId) -> tuple[int, CheckpointId] | None:
    """Returns the first version of a table in which ``app`` has reached ``checkpoint``, and the one that it has reached, or None.

    An app id's version only grows, so this is a binary search. It begins near the end, where the result usually is.
    """

    @cache
    def reached(version: int) -> CheckpointId:
        try:
            return open_table(latest.facts.uri, version).transaction_version(app) or CheckpointId(0)
        except NotFoundError:
            return CheckpointId(0)  # cleaned, so it is older than every readable version

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
