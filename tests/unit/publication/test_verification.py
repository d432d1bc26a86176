"""Verification of a home reports every damaged file by its path, and no other file."""

from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spark_jobs.checkpoint.checkpoint_store import CheckpointStore
from spark_jobs.control.attempts import Attempts
from spark_jobs.protocol.documents import CarriedActions, CheckpointKind
from spark_jobs.protocol.errors import StorageError
from spark_jobs.protocol.history import CheckpointHistory
from spark_jobs.protocol.ids import AttemptNumber, CheckpointId, IncarnationId
from spark_jobs.protocol.merge_cut import MergeCut
from spark_jobs.protocol.reports import report_error
from spark_jobs.publication.deleted_keys import FOLD_VERSIONS, add_checksums
from spark_jobs.publication.publisher import publish
from spark_jobs.publication.verification import named_by_home, still_damaged
from tests.support.attempts import attempt
from tests.support.damage import deleted, flip, flipped
from tests.support.graves import Graves
from tests.support.savepoint_site import COPIED, STAGE, SavepointSite
from tests.support.staged_pipeline import CHECKPOINTING, HOURLY, path_of
from tests.support.systems import quick


@pytest.fixture
def site(tmp_path: Path) -> SavepointSite:
    """A home with three checkpoints: state, rows in flight, staged rows of an append and of an upsert, and deleted keys."""
    site = SavepointSite(tmp_path)
    site.complete([(1, "mon"), (2, "tue")], in_flight=["a.parquet"])
    site.complete([(3, "wed")], in_flight=["b.parquet", "c.parquet"])
    graves = site.root / "home/tombstones/first/hourly"
    for key in (1, 2):
        write_deltalake(graves, pa.table({"key": [key]}), mode="append")
    add_checksums(quick(graves))
    upsert = MergeCut(
        keys=("id",),
        sequence_by="id",
        apply_as_deletes=None,
        staged_in=site.table,
        tombstones=graves.as_uri(),
        tombstones_version=1,
    )
    site.complete([(4, "thu")], cut={"merge": upsert})
    return site


def found(site: SavepointSite) -> list[str]:
    return sorted(str(error.evidence["path"]).removeprefix("file://") for error in named_by_home(site.home).verify())


def named(site: SavepointSite) -> list[Path]:
    """Returns all files of the pipeline. The directories contain no others."""
    directories = [site.root / "home" / name for name in ("manifests", "checkpoints", "state", "tombstones", "channels")]
    files = [path for directory in directories for path in directory.rglob("*")] + list(path_of(site.table).rglob("*.parquet"))
    return sorted(path for path in files if path.is_file() and not path.name.startswith("."))


def test_an_undamaged_home_has_no_findings(site: SavepointSite) -> None:
    assert found(site) == []
    assert named_by_home(site.home).checkpoints == [1, 2, 3]


def test_a_flipped_byte_of_any_file_is_found_by_the_path_of_the_file(site: SavepointSite) -> None:
    for path in named(site):
        with flipped(path, path.stat().st_size // 2):
            assert str(path) in found(site), path
    assert found(site) == []


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_flipped_byte_of_a_file_is_found_by_the_path_of_the_file(site: SavepointSite, data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(named(site)))
    at = data.draw(st.integers(0, path.stat().st_size - 1))
    with flipped(path, at):
        assert str(path) in found(site), f"byte {at} of {path}"


def test_every_deleted_file_is_found_by_its_path(site: SavepointSite) -> None:
    """A manifest before the parent of the newest one is an exception: it may have been discarded. The history has the newest one."""
    began = {"began_at": datetime.now(UTC), "attempt": AttemptNumber(1), "checkpoint_kind": CheckpointKind.PERIODIC}
    for checkpoint, failure in ((3, None), (4, report_error(StorageError("The disk is full.")))):
        tried = {"steps": (), "files": 1, "size_bytes": 1, "rows": 1, "failure": failure}
        site.pipeline.store.record(CheckpointHistory(checkpoint=CheckpointId(checkpoint), **began, **tried))
    for path in set(named(site)) - {site.root / "home/manifests/1.json"}:
        with deleted(path):
            assert str(path) in found(site), path
    assert found(site) == []


def test_staged_rows_that_a_savepoint_has_brought_are_verified(site: SavepointSite) -> None:
    store = site.pipeline.store
    head, number = store.manifest(store.taken()[-1]), CheckpointId(100)
    lines = site.pipeline.stage(HOURLY, [(5, "fri"), (6, "sat")], number)
    actions = store.write_actions(number, HOURLY, lines)
    brought = CarriedActions(first=number, last=number, batch=head.stages[STAGE].batch, actions=actions, replace=False)
    graph = {"stages": {"hourly": {"sink": {"name": "hourly"}}, "copied": {"sink": None}}}
    site.pipeline.checkpoint(
        {}, incarnation=IncarnationId("second"), stages=head.stages, brought={HOURLY: (brought,)}, graph=graph
    )
    assert found(site) == []
    for path in (path_of(site.table) / line["add"]["path"] for line in lines):
        with flipped(path, 0):
            assert found(site) == [str(path)]


def test_a_damaged_file_that_several_checkpoints_name_is_listed_once(site: SavepointSite) -> None:
    shared = [path for path in named(site) if path.name == "metadata"]
    flip(shared[0])
    assert found(site) == [str(shared[0])]


def test_files_of_public_rows_are_not_verified(site: SavepointSite) -> None:
    publish(site.home, site.pipeline.store.taken()[0])
    staged = sorted(path_of(site.table).rglob("*.parquet"))
    for path in staged:
        path.unlink()
    assert len(found(site)) < len(staged)


def test_a_file_that_retention_deletes_during_the_verification_is_not_damaged(site: SavepointSite) -> None:
    """The pipeline completes a checkpoint and discards the first one between the listing and the check."""
    listed, store = named_by_home(site.home), site.pipeline.store
    first = store.manifest(store.taken()[0])
    site.home.delete(f"manifests/{first.checkpoint}.json")
    site.home.delete(first.stages[COPIED].channel.path)
    kept = site.root / "home" / store.manifest(store.taken()[-1]).stages[COPIED].channel.path
    with deleted(kept):
        damage = listed.verify()
        assert {error.evidence["path"] for error in damage} >= {
            kept.as_uri(),
            f"{site.home.url}/{first.stages[COPIED].channel.path}",
        }
        assert [error.evidence["path"] for error in still_damaged(site.home, damage)] == [kept.as_uri()]


def test_a_manifest_that_retention_deletes_while_manifests_are_read_is_skipped(
    site: SavepointSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = CheckpointStore.taken
    monkeypatch.setattr(CheckpointStore, "taken", lambda self: [*taken(self), CheckpointId(99)])
    assert named_by_home(site.home).checkpoints == [1, 2, 3]


@pytest.mark.parametrize(("retained", "named"), [(1, False), (3, True)])
def test_a_checkpoint_that_is_kept_only_for_its_staged_rows_needs_no_rows_in_flight(
    tmp_path: Path, retained: int, named: bool
) -> None:
    site = SavepointSite(tmp_path)
    checkpointing = CHECKPOINTING.model_copy(update={"retained": retained})
    Attempts(site.home).create(attempt(1).model_copy(update={"checkpointing": checkpointing}))
    for name in ("a.parquet", "b.parquet", "c.parquet"):
        site.complete([(1, "mon")], in_flight=[name])
        publish(site.home, site.pipeline.store.taken()[-1])
    (site.channel / "a.parquet").unlink()
    assert found(site) == ([str(site.channel / "a.parquet")] if named else [])


@pytest.mark.slow
def test_every_version_of_deleted_keys_since_the_last_fold_is_verified(tmp_path: Path) -> None:
    site = SavepointSite(tmp_path)
    graves = Graves.made(site.root / "home/tombstones/first/hourly")
    for _ in graves.rounds(5 * FOLD_VERSIONS):
        graves.keep_small()
    log = graves.path / "_delta_log"
    (log / "_last_checkpoint").unlink()
    upsert = MergeCut(
        keys=("id",), sequence_by="seq", apply_as_deletes="x", staged_in=site.table,
        tombstones=graves.path.as_uri(), tombstones_version=graves.version,
    )  # fmt: skip
    site.complete(cut={"merge": upsert})
    assert found(site) == []
    checkpoints = sorted(log.glob("*.checkpoint.parquet"))
    assert checkpoints[0].name > f"{FOLD_VERSIONS:020}", "it was cut"
    since = [path for path in sorted(log.glob("*.json")) if path.name > checkpoints[0].name]
    for path in (since[1], since[len(since) // 2], since[-1]):
        with deleted(path):
            assert str(path) in found(site), path
    for path in checkpoints:
        path.unlink()
    assert str(log / f"{0:020}.json") in found(site), "without a checkpoint nobody can read the table"
