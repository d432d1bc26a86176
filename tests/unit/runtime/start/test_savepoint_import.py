"""A savepoint becomes the first checkpoint of an incarnation."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spark_jobs.checkpoint.carried import carried
from spark_jobs.checkpoint.checkpoint_store import CheckpointStore
from spark_jobs.checkpoint.retention import discard
from spark_jobs.checkpoint.savepoint import export
from spark_jobs.control.pins import pins_of_attempt
from spark_jobs.control.rounds import Rounds
from spark_jobs.protocol.documents import CheckpointKind, Manifest, Publish
from spark_jobs.protocol.errors import CorruptDocumentError, FencedError, RejectedError
from spark_jobs.protocol.ids import CheckpointId, InputName, RequestId, RoundNumber, file_prefix
from spark_jobs.protocol.merge_cut import MergeCut
from spark_jobs.protocol.pins import DeltaPin
from spark_jobs.protocol.steps import Step, observed_by
from spark_jobs.publication.publisher import publish
from spark_jobs.publication.staged_files import missing_files
from spark_jobs.runtime.spark.spark_log import SparkLog
from spark_jobs.runtime.staged.private_log import PrivateLog
from spark_jobs.runtime.stages.watermark import END_OF_TIME_MS
from spark_jobs.runtime.start.restore import restore
from spark_jobs.runtime.start.rewind import SavepointTables
from spark_jobs.runtime.start.savepoint_import import bring_in, open_savepoint
from spark_jobs.runtime.tables.table_places import TablePlace
from spark_jobs.storage.local import LocalFiles
from tests.support.crashes import Watched
from tests.support.damage import write_checksum
from tests.support.object_store import object_store
from tests.support.private_logs import STAGED_FOR
from tests.support.savepoint_site import COPIED, STAGE, SavepointSite
from tests.support.savepoint_start import NEW, beginning, saved
from tests.support.staged_pipeline import HOURLY, PIPELINE, Overtaking, a_manifest
from tests.support.systems import Crashed, quick


@pytest.fixture
def site(tmp_path: Path) -> SavepointSite:
    return SavepointSite(tmp_path / "origin")


@pytest.fixture
def home(tmp_path: Path) -> LocalFiles:
    """Another, empty home."""
    return quick(tmp_path / "other/home")


def brought(site: SavepointSite, home: LocalFiles, manifest: Manifest, **given: Any) -> Manifest:
    return bring_in(saved(site, manifest), beginning(home, home_root(home), **given))


def home_root(home: LocalFiles) -> Path:
    return Path(home.url.removeprefix("file://")).parent


def contents(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file()}


def channel_lines(home: LocalFiles, manifest: Manifest) -> list[dict[str, Any]]:
    channel = manifest.stages[COPIED].channel
    return CheckpointStore(home).read_channel(channel)


def test_an_imported_savepoint_is_the_first_checkpoint_of_its_incarnation_and_adds_no_rows(
    site: SavepointSite, home: LocalFiles
) -> None:
    taken = site.complete([(1, "a")])
    manifest = brought(site, home, taken)
    assert CheckpointStore(home).manifests() == [manifest]
    assert (manifest.checkpoint, manifest.parent, manifest.checkpoint_kind) == (1, None, CheckpointKind.SAVEPOINT)
    assert (manifest.incarnation, manifest.pipeline, manifest.attempt, manifest.round) == (NEW, "another", 4, 2)
    assert (manifest.sinks, manifest.parameters, manifest.graph) == ({}, {"day": 2}, {"stages": {}, "sources": {"events": {}}})
    assert manifest.origin
    assert (manifest.origin.pipeline, manifest.origin.incarnation, manifest.origin.checkpoint) == (
        taken.pipeline, taken.incarnation, taken.checkpoint,
    )  # fmt: skip


def test_an_imported_savepoint_gets_the_next_free_number(site: SavepointSite, home: LocalFiles) -> None:
    CheckpointStore(home).complete(a_manifest(7))
    assert brought(site, home, site.complete()).checkpoint == 8


def test_a_restore_has_the_saved_state_except_for_the_id_of_the_query(site: SavepointSite, home: LocalFiles) -> None:
    taken = site.complete()
    expected = {file.path: site.home.read(file.stored) for file in taken.stages[STAGE].files}
    manifest = brought(site, home, taken)
    work = home.below("work/w2")
    restore(home, manifest, work)
    found = contents(home_root(home) / "home/work/w2/stages/hourly/checkpoint")
    old, new = expected.pop("metadata"), found.pop("metadata")
    assert found == expected
    assert json.loads(old)["id"] != json.loads(new)["id"] == manifest.stages[STAGE].query


def test_an_imported_savepoint_needs_neither_the_old_home_nor_the_savepoint(site: SavepointSite, home: LocalFiles) -> None:
    manifest = brought(site, home, site.complete([(1, "a")], in_flight=["x.parquet"]))
    site.root.rename(site.root.with_name("gone"))
    restore(home, manifest, home.below("work/w2"))
    channel = manifest.stages[COPIED].channel
    log = PrivateLog(home.below("work/w2"), "stages/copied/log", channel.staged_in)
    assert log.table_id == "the-table", "as consumers' offsets call it"


@pytest.mark.parametrize(("reached", "rows"), [(0, 3), (1, 2)])
def test_unconsumed_rows_are_imported_unless_their_round_is_public_by_now(
    site: SavepointSite, home: LocalFiles, reached: int, rows: int
) -> None:
    """Each round is published externally."""
    policy: dict[str, Any] = {"publish": Publish.EXTERNAL, "graph": {"sources": {"events": {"bounded": True}}}}
    first = site.complete([(1, "a")], checkpoint_kind=CheckpointKind.FINAL, **policy)
    before = carried(CheckpointStore(site.home), CheckpointId(2), first, HOURLY, None)
    taken = site.complete([(2, "a"), (3, "a")], cut={"carried": tuple(before)}, **policy)
    tables = SavepointTables(site.home, PIPELINE, saved(site, taken), {HOURLY: TablePlace(site.table)})
    assert tables.unpublished() == {HOURLY: 0}
    if reached:
        publish(site.home, first.checkpoint)
    assert tables.unpublished() == {HOURLY: reached}
    begins = replace(beginning(home, home_root(home)), unpublished=tables.unpublished())
    manifest = bring_in(saved(site, taken, "again"), begins)
    assert [each.actions.rows for each in manifest.brought[HOURLY]] == [rows]


def test_files_in_flight_are_copied_and_consumed_files_are_forgotten(site: SavepointSite, home: LocalFiles) -> None:
    """Files that only a private log names are deleted in the end. Such a file must never be a public one."""
    manifest = brought(site, home, site.complete(in_flight=["x.parquet"]))
    consumed, flying = channel_lines(home, manifest)
    assert consumed["adds"] == []
    (add,) = flying["adds"]
    assert add["path"] == f"{file_prefix(NEW, COPIED)}{flying['batch']}-x.parquet"
    assert (home_root(home) / "channels/new/copied" / add["path"]).read_bytes() == b"nine byte"
    assert consumed["rows"] == 2, "what a batch has counted stays"


def test_a_channel_gets_the_table_with_its_column_names(site: SavepointSite, home: LocalFiles) -> None:
    brought(site, home, site.complete())
    assert contents(home_root(home) / "channels/new/copied") == contents(site.channel)


@pytest.mark.parametrize("kept", [False, True])
def test_the_recorded_shape_of_a_table_is_kept_only_if_the_table_is_the_same(
    site: SavepointSite, home: LocalFiles, kept: bool
) -> None:
    channel = brought(site, home, site.complete(), kept=kept).stages[STAGE].channel
    assert channel.staged_for == (STAGED_FOR if kept else None)
    assert channel.staged_in == (home_root(home) / "tables/hourly").as_uri()


@pytest.mark.parametrize("remembering", [True, False])
def test_deleted_keys_are_imported_unless_they_were_inherited(site: SavepointSite, home: LocalFiles, remembering: bool) -> None:
    keys = site.root / "home/tombstones/first/hourly/_delta_log/00000000000000000000.json"
    keys.parent.mkdir(parents=True)
    keys.write_text("{}")
    write_checksum(keys)
    upsert = MergeCut(
        keys=("id",), sequence_by="id", apply_as_deletes="x", staged_in=site.table, tombstones=keys.parent.parent.as_uri()
    )
    begins = beginning(home, home_root(home))
    opened = saved(site, site.complete(cut={"merge": upsert}))
    bring_in(opened, replace(begins, remembering=frozenset({HOURLY} if remembering else ())))
    found = contents(home_root(home) / "home/tombstones") if remembering else {}
    assert found.get("new/hourly/_delta_log/00000000000000000000.json") == (b"{}" if remembering else None)
    assert len(found) == (2 if remembering else 0), "the file, and its checksum: nothing else says what its bytes are"
    assert home.names("tombstones") == (["new"] if remembering else [])


def test_pinned_ends_are_imported(site: SavepointSite, home: LocalFiles) -> None:
    pins = (DeltaPin(path="/in", table="t", version=4),)
    manifest = brought(site, home, site.complete(inputs={InputName("events"): pins, InputName("gone"): pins}))
    pinned = Rounds(home).pinned(RoundNumber(2), InputName("events"))
    assert pinned
    assert pinned.pins == pins
    assert manifest.inputs == {InputName("events"): pins}
    assert Rounds(home).pinned(RoundNumber(2), InputName("gone")) is None


def test_the_end_of_a_source_that_is_taken_as_new_is_pinned_again(site: SavepointSite, home: LocalFiles) -> None:
    pins = (DeltaPin(path="/in", table="t", version=4),)
    begins = beginning(home, site.root)
    anew = replace(begins, round=begins.round.model_copy(update={"new_sources": (InputName("events"),)}))
    manifest = bring_in(saved(site, site.complete(inputs={InputName("events"): pins})), anew)
    assert Rounds(home).pinned(RoundNumber(2), InputName("events")) is None
    assert manifest.inputs == {}


@pytest.mark.parametrize("bounded", [True, False])
def test_the_version_of_a_static_table_is_imported_only_if_it_is_pinned_for_a_round(
    site: SavepointSite, home: LocalFiles, bounded: bool
) -> None:
    """With an unbounded source, the attempt pins the newest version."""
    pins = (DeltaPin(path="/in", table="t", version=4),)
    begins, shops = beginning(home, home_root(home)), InputName("shops")
    graph = {"stages": {}, "sources": {"events": {"bounded": bounded}}, "statics": {"shops": {}}}
    inputs = {InputName("events"): pins, shops: pins}
    with_shops = replace(begins, round=begins.round.model_copy(update={"graph": graph}))
    manifest = bring_in(saved(site, site.complete(inputs=inputs)), with_shops)
    pinned = pins_of_attempt(home, begins.attempt.attempt).pinned(shops)
    assert (shops in manifest.inputs, pinned is not None) == (bounded, bounded)
    assert InputName("events") in manifest.inputs


def test_a_removed_stage_is_not_imported(site: SavepointSite, home: LocalFiles) -> None:
    begins = beginning(home, site.root)
    kept = replace(begins, staged_in={STAGE: begins.staged_in[STAGE]})
    manifest = bring_in(saved(site, site.complete(in_flight=["x.parquet"])), kept)
    assert set(manifest.stages) == {STAGE}
    assert home.names("channels") == []


class TestAfterADrain:
    """The final watermark of a drain would make all later rows late."""

    def drained(self, site: SavepointSite, before_ms: int | None) -> Manifest:
        """A checkpoint whose last batch was a drain."""
        site.complete()
        site.state.checkpoint.batch()
        log = site.state.log
        batch = log.last_commit()
        log.rewrite(batch, log.offsets(batch).with_watermark(END_OF_TIME_MS))
        log.leave_watermark(batch, END_OF_TIME_MS)
        manifest = site.complete(drained=True)
        log = site.state.log
        batch = log.last_commit()
        cut = manifest.stages[STAGE].model_copy(
            update={"drained": True, "finished": True, "drain_batches": 1, "watermark_before_drain_ms": before_ms}
        )
        again = manifest.model_copy(update={"stages": manifest.stages | {STAGE: cut}})
        site.home.delete(f"manifests/{manifest.checkpoint}.json")
        CheckpointStore(site.home).complete(again)
        return again

    def test_the_watermark_before_the_drain_is_restored(self, site: SavepointSite, home: LocalFiles) -> None:
        manifest = brought(site, home, self.drained(site, 140_000))
        restore(home, manifest, home.below("work/w2"))
        log = SparkLog(home.below("work/w2"), "stages/hourly/checkpoint")
        batch = log.last_commit()
        assert (log.offsets(batch).watermark_ms, log.next_watermark_ms(batch)) == (140_000, 140_000)
        cut = manifest.stages[STAGE]
        assert (cut.watermark_ms, cut.drained, cut.finished, manifest.drained) == (140_000, False, False, False)
        assert cut.model_dump().items() >= log.facts(batch).items()

    def test_the_ends_of_inputs_are_pinned_again(self, site: SavepointSite, home: LocalFiles) -> None:
        assert brought(site, home, self.drained(site, 140_000)).inputs == {}

    def test_a_savepoint_without_the_watermark_before_the_drain_is_refused_early(
        self, site: SavepointSite, home: LocalFiles
    ) -> None:
        with pytest.raises(RejectedError, match="before the drain"):
            brought(site, home, self.drained(site, None))
        assert not home_root(home).exists()


def test_an_import_does_not_change_the_savepoint(site: SavepointSite, home: LocalFiles) -> None:
    opened = saved(site, site.complete([(1, "a")], in_flight=["x.parquet"]))
    before = contents(site.root / "savepoint")
    bring_in(opened, beginning(home, home_root(home)))
    assert contents(site.root / "savepoint") == before


def test_an_altered_file_is_found_before_anything_is_written(site: SavepointSite) -> None:
    export(site.home, site.complete().checkpoint, quick(site.root / "savepoint"), request=RequestId("savepoint-a"))
    path = next((site.root / "savepoint/state").rglob("metadata"))
    path.write_bytes(b"{}")
    with pytest.raises(CorruptDocumentError, match=str(path)):
        open_savepoint(str(site.root / "savepoint"))


def test_a_file_that_is_altered_later_is_found_while_it_is_copied(site: SavepointSite, home: LocalFiles) -> None:
    opened = saved(site, site.complete())
    path = next((site.root / "savepoint/state").rglob("metadata"))
    path.write_bytes(b'{"id": "another"}')
    with pytest.raises(CorruptDocumentError, match=str(path)):
        bring_in(opened, beginning(home, home_root(home)))
    assert CheckpointStore(home).taken() == []


def test_a_savepoint_with_another_state_format_is_refused(site: SavepointSite) -> None:
    manifest = site.complete(settings={"spark.sql.streaming.stateStore.checkpointFormatVersion": "9", "spark.other": "x"})
    with pytest.raises(RejectedError, match="checkpointFormatVersion: 9"):
        saved(site, manifest)


def test_rows_in_flight_with_other_column_names_in_files_than_the_table_are_refused(
    site: SavepointSite, home: LocalFiles
) -> None:
    manifest = site.complete(in_flight=["x.parquet"])
    channel = manifest.stages[COPIED].channel
    mapped = channel.model_copy(update={"metadata": channel.metadata | {"configuration": {"delta.columnMapping.mode": "name"}}})
    cut = manifest.stages[COPIED].model_copy(update={"channel": mapped})
    site.home.delete("manifests/1.json")
    CheckpointStore(site.home).complete(manifest.model_copy(update={"stages": manifest.stages | {COPIED: cut}}))
    with pytest.raises(RejectedError, match="in files with the column names of another table"):
        brought(site, home, manifest)
    assert not home_root(home).exists()


def test_a_checkpoint_that_another_attempt_completes_meanwhile_fences_the_import(site: SavepointSite, home: LocalFiles) -> None:
    opened = saved(site, site.complete())

    with observed_by(Overtaking(CheckpointStore(home), 1)), pytest.raises(FencedError):
        bring_in(opened, beginning(home, home_root(home)))
    assert bring_in(opened, beginning(home, home_root(home))).checkpoint == 2


def test_a_higher_checkpoint_that_another_attempt_leaves_meanwhile_fences_the_import(
    site: SavepointSite, home: LocalFiles
) -> None:
    """The number may be free again, because a later attempt has discarded its checkpoint."""
    opened = saved(site, site.complete())
    with observed_by(Overtaking(CheckpointStore(home), 2)), pytest.raises(FencedError):
        bring_in(opened, beginning(home, home_root(home)))


def test_the_next_attempt_completes_an_import_that_died_at_any_step(site: SavepointSite, tmp_path: Path) -> None:
    opened = saved(site, site.complete([(1, "a")], in_flight=["x.parquet"]))
    watched = Watched()
    with observed_by(watched):
        bring_in(opened, beginning(quick(tmp_path / "watched/home"), tmp_path / "watched"))
    points = watched.points[: [point.step for point in watched.points].index(Step.MANIFEST_CREATE) + 1]
    assert {point.step for point in points} >= {Step.SAVEPOINT_IMPORT, Step.CHANNEL_CREATE, Step.MANIFEST_CREATE}
    for number, point in enumerate(points):
        root = tmp_path / str(number)
        home = quick(root / "home")
        dying = Watched(lambda passed, point=point: passed == point)  # type: ignore[misc]
        with observed_by(dying), pytest.raises(Crashed):
            bring_in(opened, beginning(home, root))
        assert CheckpointStore(home).taken() == []
        manifest = bring_in(opened, beginning(home, root))
        restore(home, manifest, home.below("work/w2"))
        discard(home, ())
        named = {file.stored for cut in manifest.stages.values() for file in cut.files}
        assert {f"state/{path}" for path in contents(root / "home/state")} == named, "what the first has left is swept"


def test_a_file_that_a_crash_has_torn_is_copied_again(site: SavepointSite, home: LocalFiles) -> None:
    opened = saved(site, site.complete(in_flight=["x.parquet"]))
    begins = beginning(home, home_root(home))
    batch = opened.manifest.stages[COPIED].batch
    torn = home_root(home) / "channels/new/copied" / f"{file_prefix(NEW, COPIED)}{batch}-x.parquet"
    torn.parent.mkdir(parents=True)
    torn.write_bytes(b"nine")
    bring_in(opened, begins)
    assert torn.read_bytes() == b"nine byte"


def test_rows_in_flight_are_imported_into_a_store(site: SavepointSite, home: LocalFiles) -> None:
    taken = site.complete(in_flight=["x.parquet"])
    begins = beginning(home, home_root(home))
    with object_store() as store:
        channel = f"{store}/channels/copied"
        manifest = bring_in(saved(site, taken), replace(begins, staged_in={**begins.staged_in, COPIED: channel}))
        adds = [add for line in channel_lines(home, manifest) for add in line["adds"]]
        assert adds
        assert missing_files(channel, adds) == []
