"""A home without Spark whose checkpoints have everything that a savepoint may have to hold.

Stage ``hourly`` keeps state and has a sink. Stage ``copied`` has none, and some of its rows may be in flight.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from spark_jobs.checkpoint.named_files import with_digest
from spark_jobs.protocol.documents import CheckpointKind, Manifest, Publish
from spark_jobs.protocol.ids import BatchId, CheckpointId, StageName
from spark_jobs.protocol.stage_cut import ChannelCut, StageCut, StateFile
from spark_jobs.runtime.staged.private_log import line_of
from spark_jobs.storage.files import Files
from spark_jobs.storage.open import open_files
from tests.support.damage import write_checksum
from tests.support.private_logs import METADATA, PROTOCOL, STAGED_FOR, staged
from tests.support.staged_pipeline import HOURLY, Row, StagedPipeline
from tests.support.state_site import Site, cut

COPIED = StageName("copied")
STAGE = StageName(HOURLY)


class SavepointSite:
    """Makes checkpoints in a home, by default at ``root / "home"``, with a sink's table at ``root / "tables/hourly"``."""

    def __init__(self, root: Path, home: Files | None = None) -> None:
        self.root = root
        self.state = Site(root, home)
        self.state.batches(1)
        self.home = self.state.home
        self.pipeline = StagedPipeline(self.home, root / "tables")
        self.table = self.pipeline.make_table(HOURLY)
        self.channel = root / "home/channels/first/copied"
        (self.channel / "_delta_log/_staged_commits").mkdir(parents=True)
        first = self.channel / "_delta_log/00000000000000000000.json"
        first.write_text('{"metaData": {}}')
        write_checksum(first)
        self._head: Manifest | None = None

    def complete(self, rows: Sequence[Row] = (), in_flight: Iterable[str] = (), **changes: Any) -> Manifest:
        """Completes the next checkpoint: one batch later in each stage, with ``rows`` staged for the sink and files in flight."""
        self.state.batches(1)
        number = CheckpointId(self._head.checkpoint + 1 if self._head else 1)
        before = self._head.stages[STAGE] if self._head else None
        batch = self.state.log.last_commit()
        hourly = self.state.take(batch, before, number)
        flying = self._fly(in_flight, batch)
        fields: dict[str, Any] = {
            "checkpoint_kind": CheckpointKind.SAVEPOINT,
            "publish": Publish.EVERY_CHECKPOINT,
            "stages": {
                STAGE: self._with_channel(hourly, STAGE, number, self.table, [staged(batch)], []),
                COPIED: self._with_channel(
                    cut(batch, self._logs(number, batch)),
                    COPIED,
                    number,
                    self.channel.as_uri(),
                    [staged(batch - 1, "old"), *(flying or [staged(batch)])],
                    flying,
                ),
            },
        }
        self._head = self.pipeline.checkpoint({HOURLY: rows}, **(fields | changes))
        return self._head

    def _logs(self, number: int, batch: int) -> tuple[StateFile, ...]:
        """Returns the log files of a query. They are the same for both stages."""
        found = []
        for path in ("metadata", f"offsets/{batch}", f"commits/{batch}"):
            stored = f"state/copied/{number}-1-1/{path}"
            self.home.create(stored, (self.state.checkpoint.root / path).read_bytes())
            found.append(StateFile(path=path, stored=stored, **self.home.digest(stored)._asdict()))
        return tuple(found)

    def _fly(self, names: Iterable[str], batch: int) -> list[Any]:
        for name in (found := list(names)):
            (self.channel / name).write_bytes(b"nine byte")
        flying = staged(batch, *found)
        channel = open_files(str(self.channel))
        adds = tuple(with_digest(add, channel.digest(str(add["path"]))) for add in flying.adds)
        return [replace(flying, adds=adds)] if found else []

    def _with_channel(
        self, stage: StageCut, name: StageName, number: CheckpointId, where: str, lines: list[Any], flying: list[Any]
    ) -> StageCut:
        path, digest = self.pipeline.store.write_channel(number, name, map(line_of, lines))
        channel = ChannelCut(
            metadata=METADATA, protocol=PROTOCOL, staged_for=STAGED_FOR, staged_in=where, path=path, sha256=digest,
            first=BatchId(lines[0].batch), last=BatchId(lines[-1].batch), in_flight_rows=sum(each.rows for each in flying),
            in_flight_size_bytes=sum(add["size"] for each in flying for add in each.adds),
        )  # fmt: skip
        return stage.model_copy(update={"channel": channel})
