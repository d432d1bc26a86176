"""The contents of a savepoint, when it is complete, and when it is deleted."""

import re
import shutil
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Any

import pytest

from spark_jobs.checkpoint.checkpoint_store import CheckpointStore
from spark_jobs.checkpoint.savepoint import check_target, dispose, export, places_of, read_savepoint, verify
from spark_jobs.control.channel import Channel
from spark_jobs.home.layout import savepoint_path
from spark_jobs.protocol.documents import Manifest
from spark_jobs.protocol.errors import CorruptDocumentError, RejectedError
from spark_jobs.protocol.ids import CheckpointId, InputName, PipelineName, RequestId
from spark_jobs.protocol.known_sources import KnownFiles
from spark_jobs.protocol.merge_cut import MergeCut
from spark_jobs.protocol.savepoint import Savepoint
from spark_jobs.publication.deleted_keys import FOLD_VERSIONS
from spark_jobs.publication.publisher import publish
from spark_jobs.storage.local import LocalFiles
from tests.support.damage import flipped, write_checksum
from tests.support.damaged_savepoints import REQUEST, Damage, alter, cut_off, site, taken, target_of
from tests.support.file_systems import elsewhere
from tests.support.graves import Graves
from tests.support.savepoint_site import STAGE, SavepointSite
from tests.support.staged_pipeline import HOURLY, path_of
from tests.support.systems import quick

__all__ = ["elsewhere", "site"]


def contents(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file()}


def parquet(savepoint: Savepoint) -> int:
    return sum(file.path.startswith("staged/hourly/") for file in savepoint.files)


damages = pytest.mark.parametrize("damage", [Path.unlink, cut_off, alter], ids=["missing", "torn", "altered"])


class TestASavepoint:
    """A savepoint contains every file of its checkpoint, and depends on no file that others may delete."""

    def test_names_each_of_its_files_with_size_and_hash(self, site: SavepointSite) -> None:
        manifest = site.complete([(1, "a b")], in_flight=["x.parquet"])
        savepoint = taken(site, manifest)
        there = contents(site.root / "savepoint")
        assert [file.path for file in savepoint.files] == sorted(there.keys() - {"savepoint.json"})
        assert {file.path: file.size_bytes for file in savepoint.files} == {
            path: len(data) for path, data in there.items() if path != "savepoint.json"
        }
        assert savepoint.size_bytes == sum(file.size_bytes for file in savepoint.files)
        assert verify(target_of(site)) == savepoint

    def test_names_its_pipeline_incarnation_and_checkpoint(self, site: SavepointSite) -> None:
        manifest = site.complete(drained=True)
        taken(site, manifest)
        savepoint, held = read_savepoint(target_of(site))
        assert held == manifest
        assert (savepoint.pipeline, savepoint.pipeline_name, savepoint.incarnation, savepoint.checkpoint, savepoint.drained) == (
            manifest.pipeline, manifest.pipeline_name, manifest.incarnation, manifest.checkpoint, True,
        )  # fmt: skip
        assert (savepoint.request, savepoint.taken_at) == (REQUEST, manifest.completed_at)

    def test_has_the_state_and_the_channels_of_the_home(self, site: SavepointSite) -> None:
        manifest = site.complete()
        expected = {file.stored: site.home.read(file.stored) for file in manifest.stages[STAGE].files}
        channels = [cut.channel for cut in manifest.stages.values()]
        expected |= {channel.path: site.home.read(channel.path) for channel in channels}
        taken(site, manifest)
        assert expected.items() <= contents(site.root / "savepoint").items()
        assert len(channels) == 2

    def test_has_state_that_an_earlier_checkpoint_has_kept(self, site: SavepointSite) -> None:
        site.complete()
        manifest = site.complete()
        assert any("/1-1-1/" in file.stored for file in manifest.stages[STAGE].files)
        shutil.copytree(site.root / "home/state", site.root / "state before")
        taken(site, manifest)
        for file in manifest.stages[STAGE].files:
            assert target_of(site).digest(file.stored) == (file.size_bytes, file.sha256)

    def test_has_rows_in_flight_but_no_consumed_rows(self, site: SavepointSite) -> None:
        manifest = site.complete(in_flight=["x.parquet", "y.parquet"])
        taken(site, manifest)
        assert target_of(site).names("staged/copied") == ["_delta_log", "x.parquet", "y.parquet"]

    def test_has_the_column_names_of_a_channel(self, site: SavepointSite) -> None:
        taken(site, site.complete())
        assert contents(site.root / "savepoint/staged/copied") == contents(site.channel)
        assert not (site.root / "savepoint/staged/hourly").exists()

    def test_has_staged_rows_under_the_names_that_their_actions_have(self, site: SavepointSite) -> None:
        manifest = site.complete([(1, "a b"), (2, None)])
        taken(site, manifest)
        lines = CheckpointStore(target_of(site)).read_actions(manifest.sinks[HOURLY])
        assert len(lines) == 2
        for path, data in contents(site.root / "savepoint/staged/hourly").items():
            assert data == (path_of(site.table) / path).read_bytes()
        assert any(path.startswith("day=a b/") for path in contents(site.root / "savepoint/staged/hourly"))

    @pytest.mark.parametrize(("known", "manifests", "files"), [(None, 3, 3), (1, 2, 2), (2, 1, 1)])
    def test_has_earlier_checkpoints_that_were_not_known_to_be_public(
        self, site: SavepointSite, known: int | None, manifests: int, files: int
    ) -> None:
        site.complete([(1, "a")])
        site.complete([(2, "a")])
        manifest = site.complete([(3, "a")], known_published=known)
        savepoint = taken(site, manifest)
        assert CheckpointStore(target_of(site)).taken() == [1, 2, 3][3 - manifests :]
        assert parquet(savepoint) == files
        assert len(list((site.root / "savepoint").rglob("*.actions"))) == files
        for number in CheckpointStore(target_of(site)).ids():
            found = CheckpointStore(target_of(site)).manifest(number)
            assert CheckpointStore(target_of(site)).read_actions(found.sinks[HOURLY])

    def test_does_not_change_if_rows_become_public_meanwhile(self, site: SavepointSite) -> None:
        site.complete([(1, "a")])
        manifest = site.complete([(2, "a")])
        publish(site.home)
        assert parquet(taken(site, manifest)) == 2

    def test_counts_a_missing_earlier_checkpoint_as_public(self, site: SavepointSite) -> None:
        site.complete([(1, "a")])
        manifest = site.complete([(2, "a")])
        site.home.delete("manifests/1.json")
        assert parquet(taken(site, manifest)) == 1

    def test_has_the_deleted_keys_of_an_upsert_sink(self, site: SavepointSite) -> None:
        keys = site.root / "home/tombstones/first/hourly"
        for path in ("_delta_log/00000000000000000000.json", "part-1.parquet"):
            (keys / path).parent.mkdir(parents=True, exist_ok=True)
            (keys / path).write_bytes(path.encode())
        upsert = {"keys": ("id",), "sequence_by": "id", "apply_as_deletes": "x", "tombstones": keys.as_uri()}
        manifest = site.complete(cut={"merge": an_upsert(site, **upsert)})
        taken(site, manifest)
        assert contents(site.root / "savepoint/tombstones/hourly").keys() == {
            "_delta_log/00000000000000000000.json", "part-1.parquet",
        }  # fmt: skip

    @pytest.mark.slow
    def test_has_all_deleted_keys_although_they_are_folded_during_the_copy(self, site: SavepointSite) -> None:
        """A publication in another process folds the deleted keys twice. The second fold deletes the files that the first one replaced."""
        graves = Graves.made(site.root / "home/tombstones/first/hourly")
        for _ in graves.rounds(4 * FOLD_VERSIONS):
            graves.keep_small()
        graves.becomes_due()
        upsert = {"keys": ("id",), "sequence_by": "seq", "apply_as_deletes": "x", "tombstones": graves.path.as_uri()}
        manifest = site.complete(cut={"merge": an_upsert(site, **upsert)})
        folding, folded = Lock(), list[bool]()

        def publishes() -> None:
            with folding:
                if not folded:
                    folded.append(graves.keep_small())

        export(site.home, manifest.checkpoint, target_of(site), request=REQUEST, check=publishes)
        assert folded == [True]
        verify(target_of(site))
        graves.assert_right(site.root / "savepoint/tombstones/hourly")

    def test_compares_files_without_a_documented_hash_with_their_checksum_files(self, site: SavepointSite) -> None:
        keys = site.root / "home/tombstones/first/hourly"
        log = keys / "_delta_log/00000000000000000000.json"
        log.parent.mkdir(parents=True)
        log.write_bytes(b"{}")
        write_checksum(log)
        upsert = {"keys": ("id",), "sequence_by": "id", "apply_as_deletes": "x", "tombstones": keys.as_uri()}
        manifest = site.complete(cut={"merge": an_upsert(site, **upsert)})
        with flipped(log, 0), pytest.raises(CorruptDocumentError, match="expected the bytes of its checksum") as raised:
            taken(site, manifest)
        assert raised.value.evidence["path"] == log.as_uri()
        shutil.rmtree(site.root / "savepoint")
        taken(site, manifest)
        assert contents(site.root / "savepoint/tombstones") == contents(site.root / "home/tombstones/first")

    def test_survives_the_home_and_its_tables(self, site: SavepointSite) -> None:
        savepoint = taken(site, site.complete([(1, "a")], in_flight=["x.parquet"]))
        for path in (*(site.root / "home").rglob("*"), *(site.root / "tables").rglob("*")):
            if path.is_file():
                path.write_bytes(b"overwritten where it lies")
        shutil.rmtree(site.root / "home")
        (site.root / "savepoint").rename(site.root / "moved")
        assert verify(quick(site.root / "moved")) == savepoint

    def test_can_be_made_on_another_file_system_and_moved_to_a_third_place(self, site: SavepointSite, elsewhere: Path) -> None:
        manifest = site.complete([(1, "a")], in_flight=["x.parquet"])
        savepoint = export(site.home, manifest.checkpoint, quick(elsewhere / "savepoint"), request=REQUEST)
        assert verify(quick(elsewhere / "savepoint")) == savepoint == taken(site, manifest)
        shutil.move(elsewhere / "savepoint", site.root / "moved")
        assert verify(quick(site.root / "moved")) == savepoint


def an_upsert(site: SavepointSite, **fields: Any) -> MergeCut:
    return MergeCut(staged_in=site.table, **fields)


class TestAnExportIsRefusedFor:
    """An export is refused before it writes anything."""

    def refused(self, site: SavepointSite, target: LocalFiles, match: str, checkpoint: int = 1) -> None:
        before = contents(site.root)
        with pytest.raises(RejectedError, match=match):
            export(site.home, CheckpointId(checkpoint), target, request=REQUEST)
        assert contents(site.root) == before

    def test_a_missing_checkpoint(self, site: SavepointSite) -> None:
        site.complete()
        self.refused(site, target_of(site), "no complete checkpoint 7", 7)

    def test_a_directory_with_other_files(self, site: SavepointSite) -> None:
        site.complete()
        target_of(site).create("notes.txt", b"mine")
        self.refused(site, target_of(site), r"not empty: it has notes\.txt")

    def test_a_directory_with_another_savepoint(self, site: SavepointSite) -> None:
        taken(site, site.complete())
        site.complete()
        self.refused(site, target_of(site), "it has checkpoint 1 of pipeline flights", 2)

    def test_the_savepoint_of_another_request(self, site: SavepointSite) -> None:
        export(site.home, site.complete().checkpoint, target_of(site), request=RequestId("savepoint-b"))
        self.refused(site, target_of(site), "for savepoint-b")

    def test_a_directory_in_which_another_savepoint_was_begun(self, site: SavepointSite) -> None:
        site.complete()
        target_of(site).create("exporting.json", b"of another one")
        self.refused(site, target_of(site), "another savepoint was begun")

    @pytest.mark.parametrize("place", ["checkpoints/9", "state/x", "savepoints"])
    def test_a_directory_of_the_home(self, site: SavepointSite, place: str) -> None:
        site.complete()
        self.refused(site, quick(site.root / "home" / place), "inside the home")

    def test_a_directory_inside_a_table(self, site: SavepointSite) -> None:
        site.complete()
        self.refused(site, quick(path_of(site.table) / "savepoint"), "is inside the table")

    @pytest.mark.parametrize(("read", "how"), [("in", "inside"), ("in/*/rows", "around"), ("*/new", "also")])
    def test_a_directory_where_a_source_reads(self, site: SavepointSite, read: str, how: str) -> None:
        site.complete(sources={InputName("rows"): (KnownFiles(path=f"file://{site.root}/{read}"),)})
        place = quick(site.root / ("in" if how == "around" else "in/new"))
        self.refused(site, place, rf"The savepoint \S+ is {how} the source 'rows', \S+/{re.escape(read)}\.")

    @pytest.mark.parametrize(("inside", "match"), [("home", "inside the home"), ("tables/hourly", "inside the table")])
    def test_a_symbolic_link_into_the_home_or_a_table(self, site: SavepointSite, inside: str, match: str) -> None:
        site.complete()
        (site.root / "link").symlink_to(site.root / inside)
        target = quick(site.root / "link/savepoint")
        self.refused(site, target, match)
        with pytest.raises(RejectedError, match=match) as refused:
            check_target(site.home, target, places_of([site.table], {}), REQUEST)
        assert refused.value.safe == "Nothing was written."

    def test_a_directory_in_a_home_or_table_that_a_symbolic_link_names(self, site: SavepointSite) -> None:
        (site.root / "link").symlink_to(site.root)
        for inside, match in {"home": "inside the home", "tables/hourly": "inside the table"}.items():
            with pytest.raises(RejectedError, match=match):
                check_target(
                    quick(site.root / "link/home"),
                    quick(site.root / inside / "savepoint"),
                    places_of([f"file://{site.root}/link/tables/hourly"], {}),
                    REQUEST,
                )

    @pytest.mark.parametrize("place", ["", "checkpoints/9", "savepoints/a"])
    def test_a_directory_of_another_home(self, site: SavepointSite, place: str) -> None:
        site.complete()
        Channel(quick(site.root / "other")).claim(PipelineName("other"))
        self.refused(site, quick(site.root / "other" / place), r"The savepoint \S+ is (also|inside) the home \S+/other\.")

    def test_a_directory_inside_another_savepoint(self, site: SavepointSite) -> None:
        site.complete()
        place = savepoint_path(REQUEST)
        export(site.home, CheckpointId(1), site.home.below(place), request=REQUEST)
        inside = quick(site.root / "home" / place / "staged/mine")
        self.refused(site, inside, r"The savepoint \S+/staged/mine is inside the savepoint \S+/savepoints/savepoint-a\.")

    def test_a_directory_inside_a_foreign_table(self, site: SavepointSite) -> None:
        site.complete()
        (site.root / "theirs/_delta_log").mkdir(parents=True)
        self.refused(site, quick(site.root / "theirs/day=1"), r"is inside the table \S+/theirs\.")

    def test_the_directory_of_the_home(self, site: SavepointSite) -> None:
        site.complete()
        self.refused(site, quick(site.root / "home"), "is also the home")


def source_files(site: SavepointSite, manifest: Manifest) -> dict[str, Path]:
    """Returns one file of each kind that an export copies."""
    home = site.root / "home"
    hourly = manifest.stages[STAGE]
    return {
        "a state file": home / next(file.stored for file in hourly.files if file.path.startswith("state/")),
        "a channel": home / hourly.channel.path,
        "actions": home / manifest.sinks[HOURLY].actions.path,
    }


@damages
@pytest.mark.parametrize("kind", ["a state file", "a channel", "actions"])
def test_a_damaged_file_in_the_home_is_named_by_its_path_and_no_savepoint_is_made(
    site: SavepointSite, kind: str, damage: Damage
) -> None:
    site.complete([(1, "a")])
    manifest = site.complete([(2, "a")])
    path = source_files(site, manifest)[kind]
    damage(path)
    with pytest.raises(CorruptDocumentError) as corrupt:
        taken(site, manifest)
    assert corrupt.value.evidence["path"].endswith(str(path.relative_to(site.root)))
    assert not (site.root / "savepoint/savepoint.json").exists()


@pytest.mark.parametrize("damage", [Path.unlink, cut_off], ids=["missing", "torn"])
def test_a_missing_or_torn_staged_file_is_named_by_its_path(site: SavepointSite, damage: Damage) -> None:
    manifest = site.complete([(1, "a")])
    (path,) = path_of(site.table).rglob("*.parquet")
    damage(path)
    with pytest.raises(CorruptDocumentError, match=path.name):
        taken(site, manifest)


def test_a_table_of_the_runtime_without_a_log_is_named_as_corrupt_and_not_taken_for_empty(site: SavepointSite) -> None:
    manifest = site.complete([(1, "a")])
    shutil.rmtree(site.channel / "_delta_log")
    with pytest.raises(CorruptDocumentError, match="channels/first/copied/_delta_log is missing"):
        taken(site, manifest)


def test_a_missing_table_of_deleted_keys_is_named_by_its_path(site: SavepointSite) -> None:
    keys = (site.root / "home/tombstones/first/hourly").as_uri()
    upsert = an_upsert(site, keys=("id",), sequence_by="id", apply_as_deletes="x", tombstones=keys)
    with pytest.raises(CorruptDocumentError, match="tombstones/first/hourly/_delta_log is missing"):
        taken(site, site.complete(cut={"merge": upsert}))


@pytest.mark.parametrize("damage", [cut_off, alter], ids=["torn", "altered"])
def test_a_damaged_earlier_manifest_is_named_by_its_path(site: SavepointSite, damage: Damage) -> None:
    site.complete([(1, "a")])
    manifest = site.complete([(2, "a")])
    damage(site.root / "home/manifests/1.json")
    with pytest.raises(CorruptDocumentError, match=r"manifests/1.json"):
        taken(site, manifest)


def test_a_failed_export_succeeds_once_the_missing_file_is_back(site: SavepointSite) -> None:
    manifest = site.complete([(1, "a")])
    (path,) = path_of(site.table).rglob("*.parquet")
    data = path.read_bytes()
    path.unlink()
    with suppress(CorruptDocumentError):
        taken(site, manifest)
    path.write_bytes(data)
    taken(site, manifest)
    verify(target_of(site))


def test_a_repeated_export_changes_nothing(site: SavepointSite) -> None:
    manifest = site.complete([(1, "a")])
    first = taken(site, manifest)
    before = contents(site.root / "savepoint")
    publish(site.home)
    site.home.delete("state")
    assert taken(site, manifest) == first
    assert contents(site.root / "savepoint") == before


def test_a_savepoint_is_below_the_home_by_default(site: SavepointSite) -> None:
    manifest = site.complete()
    target = site.home.below(savepoint_path(REQUEST))
    export(site.home, manifest.checkpoint, target, request=REQUEST)
    assert site.home.names("savepoints/savepoint-a") == ["checkpoints", "manifests", "savepoint.json", "staged", "state"]


class TestVerify:
    """Every file of a savepoint is verified."""

    @damages
    def test_each_damaged_file_is_named_by_its_path(self, site: SavepointSite, damage: Damage) -> None:
        savepoint = taken(site, site.complete([(1, "a")], in_flight=["x.parquet"]))
        shutil.copytree(site.root / "savepoint", site.root / "whole")
        for file in savepoint.files:
            shutil.rmtree(site.root / "savepoint")
            shutil.copytree(site.root / "whole", site.root / "savepoint")
            damage(site.root / "savepoint" / file.path)
            with pytest.raises(CorruptDocumentError) as corrupt:
                verify(target_of(site))
            assert corrupt.value.evidence["path"] == f"{target_of(site).url}/{file.path}"

    @pytest.mark.parametrize("damage", [cut_off, alter], ids=["torn", "altered"])
    def test_the_damaged_document_of_the_savepoint_is_named_by_its_path(self, site: SavepointSite, damage: Damage) -> None:
        taken(site, site.complete())
        damage(site.root / "savepoint/savepoint.json")
        with pytest.raises(CorruptDocumentError, match=r"savepoint\.json"):
            verify(target_of(site))

    def test_a_directory_that_is_no_savepoint_is_refused(self, site: SavepointSite) -> None:
        with pytest.raises(RejectedError, match="is not a savepoint"):
            verify(target_of(site))
        target_of(site).create("exporting.json", b"")
        with pytest.raises(RejectedError, match="is not finished"):
            verify(target_of(site))

    def test_verify_reports_its_progress(self, site: SavepointSite) -> None:
        savepoint = taken(site, site.complete([(1, "a")]))
        told: list[int] = []
        verify(target_of(site), told.append)
        assert (len(told), sum(told)) == (len(savepoint.files), savepoint.size_bytes)


class TestDispose:
    """A savepoint is deleted only on request."""

    def test_no_file_of_the_savepoint_is_left_and_the_home_is_as_it_was(self, site: SavepointSite) -> None:
        taken(site, site.complete([(1, "a")]))
        before = contents(site.root / "home")
        dispose(target_of(site))
        assert not (site.root / "savepoint").exists()
        assert contents(site.root / "home") == before

    def test_dispose_may_be_repeated(self, site: SavepointSite) -> None:
        taken(site, site.complete())
        dispose(target_of(site))
        dispose(target_of(site))

    def test_an_unfinished_savepoint_is_deleted_too(self, site: SavepointSite) -> None:
        target_of(site).create("exporting.json", b"")
        target_of(site).create("state/x/1", b"")
        dispose(target_of(site))
        assert not (site.root / "savepoint").exists()

    def test_files_that_others_have_put_into_the_directory_stay(self, site: SavepointSite) -> None:
        taken(site, site.complete())
        target_of(site).create("notes.txt", b"mine")
        dispose(target_of(site))
        assert contents(site.root / "savepoint") == {"notes.txt": b"mine"}

    def test_a_directory_that_is_no_savepoint_is_refused(self, site: SavepointSite) -> None:
        target_of(site).create("state/x", b"mine")
        with pytest.raises(RejectedError, match="is not a savepoint"):
            dispose(target_of(site))
        assert contents(site.root / "savepoint") == {"state/x": b"mine"}

    def test_a_savepoint_that_is_still_needed_is_refused(self, site: SavepointSite) -> None:
        taken(site, site.complete())
        before = contents(site.root / "savepoint")
        with pytest.raises(RejectedError, match="needed by start-3"):
            dispose(target_of(site), ["start-3"])
        assert contents(site.root / "savepoint") == before

    @pytest.mark.parametrize("marker", ["savepoint.json", "exporting.json"])
    def test_a_home_that_was_begun_at_the_same_place_keeps_all_its_files(self, site: SavepointSite, marker: str) -> None:
        taken(site, site.complete())
        (site.root / "savepoint/savepoint.json").rename(site.root / "savepoint" / marker)
        Channel(target_of(site)).claim(PipelineName("other"))
        target_of(site).create("checkpoints/1.hourly.actions", b"public rows")
        before = contents(site.root / "savepoint")
        with pytest.raises(RejectedError, match=r"savepoint .* cannot be deleted: a home is in the same directory"):
            dispose(target_of(site))
        assert contents(site.root / "savepoint") == before

    @pytest.mark.parametrize("place", ["state/hourly/theirs", "checkpoints/9", "staged/hourly/deep", "tombstones/a/b/c"])
    @pytest.mark.parametrize("marker", ["pipeline.json", "_delta_log/0.json"])
    def test_a_savepoint_with_a_home_or_table_inside_is_refused_and_stays_complete(
        self, site: SavepointSite, place: str, marker: str
    ) -> None:
        taken(site, site.complete())
        target_of(site).create(f"{place}/{marker}", b"")
        before = contents(site.root / "savepoint")
        with pytest.raises(RejectedError, match=rf"cannot be deleted: the \w+ \S+/{place} is inside it"):
            dispose(target_of(site))
        assert contents(site.root / "savepoint") == before

    def test_a_home_that_begins_while_a_savepoint_at_its_place_is_deleted_keeps_its_files(self, site: SavepointSite) -> None:
        taken(site, site.complete())

        class Slow(LocalFiles):
            """A slow disposal: when it continues, another one has deleted the savepoint and a home has begun in its place."""

            def delete(self, path: str) -> None:
                super().delete(path)
                if path == "savepoint.json":
                    dispose(target_of(site))
                    Channel(target_of(site)).claim(PipelineName("other"))
                    target_of(site).create("checkpoints/1.hourly.actions", b"public rows")

        with pytest.raises(RejectedError, match="a home is in the same directory"):
            dispose(Slow(site.root / "savepoint"))
        assert set(contents(site.root / "savepoint")) == {"pipeline.json", "checkpoints/1.hourly.actions"}

    def test_a_torn_document_is_corrupt_and_nothing_is_deleted(self, site: SavepointSite) -> None:
        taken(site, site.complete())
        cut_off(site.root / "savepoint/savepoint.json")
        before = contents(site.root / "savepoint")
        with pytest.raises(CorruptDocumentError):
            dispose(target_of(site))
        assert contents(site.root / "savepoint") == before
