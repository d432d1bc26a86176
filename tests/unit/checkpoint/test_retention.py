"""The checkpoints that retention deletes, and the files that are deleted with them."""

import re
from collections.abc import Container
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_jobs.checkpoint.checkpoint_store import CheckpointStore
from spark_jobs.checkpoint.retention import discard, discardable, in_flight_from, kept, unpublished_from
from spark_jobs.protocol.documents import CarriedActions, CheckpointKind, Manifest, SinkCut
from spark_jobs.protocol.errors import InvalidParameterError, UnsupportedFormatError
from spark_jobs.protocol.ids import AppId, BatchId, CheckpointId, IncarnationId, SinkName, StageName
from spark_jobs.protocol.stage_cut import ChannelCut, StageCut, StateFile
from spark_jobs.protocol.steps import Step, observed_by
from tests.support.memory_files import MemoryFiles
from tests.support.staged_pipeline import a_channel, a_manifest, a_stage_cut

HOURLY = StageName("hourly")
SINK = SinkName("hourly")


def cut(batch: int, *stored: str, channel: ChannelCut | None = None) -> StageCut:
    files = tuple(StateFile(path=path.rpartition("/")[2], stored=path, size_bytes=1, sha256="") for path in stored)
    return a_stage_cut(batch, files=files, channel=channel or a_channel(batch))


def periodic(checkpoint: int, *stored: str, **changes: Any) -> Manifest:
    """A checkpoint of one stage with a sink. Checkpoint ``k`` is cut at batch ``10 * k``."""
    fields = {"checkpoint_kind": CheckpointKind.PERIODIC, "stages": {HOURLY: cut(10 * checkpoint, *stored)}}
    return a_manifest(checkpoint, **(fields | changes))


def with_sink(checkpoint: int, *names: str, publish: str = "every_checkpoint") -> Manifest:
    store, lines = CheckpointStore(MemoryFiles()), [{"add": {"path": n, "size": 1, "stats": '{"numRecords": 1}'}} for n in names]
    sink = SinkCut(
        stage=HOURLY, table="file:///t", table_id="t", staged_for=(), partition_by=(), app=AppId("a"),
        actions=store.write_actions(CheckpointId(1), SINK, lines), publish=publish, known_published=None,
    )  # fmt: skip
    return periodic(checkpoint, sinks={SINK: sink})


def going(
    manifests: list[Manifest],
    *,
    retained: int = 1,
    published: int = 100,
    remembered: int = 10_000,
    needed: Container[CheckpointId] = (),
    closed: Container[IncarnationId] = (),
) -> list[int]:
    stay = kept(manifests, retained=retained, published={SINK: CheckpointId(published)}, needed=needed)
    public = {SINK: CheckpointId(published) if published else None}
    found = discardable(manifests, stay, remembered={HOURLY: BatchId(remembered)}, published=public, closed=closed)
    return [int(checkpoint) for checkpoint in found]


class TestRetentionKeeps:
    """Checkpoints that are kept because a restore or a publication may need them."""

    @pytest.mark.parametrize(("retained", "gone"), [(1, [1, 2, 3]), (2, [1, 2, 3]), (3, [1, 2]), (9, [])])
    def test_the_newest_checkpoints_and_the_parent_of_the_head(self, retained: int, gone: list[int]) -> None:
        assert going([periodic(k) for k in range(1, 6)], retained=retained) == gone

    def test_the_head_if_it_is_the_only_checkpoint(self) -> None:
        assert going([periodic(1)]) == []
        assert going([]) == []

    @pytest.mark.parametrize("retained", [0, -1])
    def test_at_least_one_checkpoint_and_refuses_a_lower_number(self, retained: int) -> None:
        with pytest.raises(InvalidParameterError):
            going([periodic(1)], retained=retained)

    @pytest.mark.parametrize("kind", list(CheckpointKind))
    def test_no_checkpoint_because_of_its_kind(self, kind: CheckpointKind) -> None:
        manifests = [periodic(k, checkpoint_kind=kind if k == 2 else CheckpointKind.PERIODIC) for k in range(1, 6)]
        assert going(manifests) == [1, 2, 3]

    @pytest.mark.parametrize(("published", "gone"), [(0, []), (1, [1]), (2, [1, 2]), (5, [1, 2, 3])])
    def test_checkpoints_that_a_sink_has_not_published(self, published: int, gone: list[int]) -> None:
        assert going([with_sink(k) for k in range(1, 6)], published=published) == gone

    def test_no_checkpoint_of_an_unfinished_round_whose_rows_the_head_carries(self) -> None:
        manifests = [with_sink(k, "some.parquet", publish="final") for k in range(1, 6)]
        assert going(manifests, published=0, remembered=0) == [1, 2, 3]

    @pytest.mark.parametrize("publish", ["final", "external"])
    def test_the_last_checkpoint_of_an_unpublished_round_although_the_head_carries_its_rows(self, publish: str) -> None:
        """The caller of the round waits for this checkpoint: a table has refused it, or an external publisher publishes it."""
        ending = {2: CheckpointKind.FINAL}
        kinds = [ending.get(k, CheckpointKind.PERIODIC) for k in range(1, 6)]
        bounded = {"sources": {"events": {"bounded": True}}}
        manifests = [
            with_sink(k, "some.parquet", publish=publish).model_copy(update={"checkpoint_kind": kind, "graph": bounded})
            for k, kind in enumerate(kinds, start=1)
        ]
        assert going(manifests, published=0, remembered=0) == [1, 3]
        assert 2 in going(manifests, published=2, remembered=100)

    @pytest.mark.parametrize("carries", [False, True])
    def test_checkpoints_whose_files_the_head_does_not_carry_because_they_were_public(self, carries: bool) -> None:
        """The final checkpoint of an earlier round names its files itself, or names those of the checkpoints before it."""
        manifests = [with_sink(k, *([] if carries else ["some.parquet"]), publish="final") for k in range(1, 6)]
        cut = manifests[1].sinks[SINK]
        if carries:
            actions = with_sink(1, "some.parquet").sinks[SINK].actions
            one = CarriedActions(first=CheckpointId(1), last=CheckpointId(1), batch=BatchId(10), actions=actions, replace=False)
            manifests[1] = manifests[1].model_copy(update={"sinks": {SINK: cut.model_copy(update={"carried": (one,)})}})
        head = manifests[-1].sinks[SINK].model_copy(update={"known_published": CheckpointId(2)})
        manifests[-1] = manifests[-1].model_copy(update={"sinks": {SINK: head}})
        batch = 10 if carries else 20
        assert 2 not in going(manifests, published=2, remembered=batch)
        assert 2 in going(manifests, published=2, remembered=batch + 1)

    def test_checkpoints_that_one_of_several_sinks_has_not_published(self) -> None:
        manifests = [with_sink(k) for k in range(1, 6)]
        other = {SinkName("other"): manifests[0].sinks[SINK]}
        both = [each.model_copy(update={"sinks": each.sinks | other}) for each in manifests]
        assert kept(both, retained=1, published={SINK: CheckpointId(5)}) == both

    def test_no_checkpoint_that_is_public_in_one_sink_and_carried_for_the_other(self) -> None:
        early, late = SinkName("early"), SinkName("late")
        manifests = []
        for k in range(1, 6):
            sinks = {
                sink: with_sink(k, "some.parquet", publish=policy).sinks[SINK]
                for sink, policy in ((early, "every_checkpoint"), (late, "final"))
            }
            manifests.append(with_sink(k).model_copy(update={"sinks": sinks}))
        public = {early: CheckpointId(3), late: None}
        assert [each.checkpoint for each in kept(manifests, retained=1, published=public)] == [4, 5]
        public = {early: CheckpointId(2), late: None}
        assert [each.checkpoint for each in kept(manifests, retained=1, published=public)] == [3, 4, 5]

    @pytest.mark.parametrize(
        ("publish", "published", "gone"),
        [("every_checkpoint", 0, []), ("every_checkpoint", 2, [1, 2]), ("external", 0, []), ("final", 0, [1, 2, 3])],
    )
    def test_the_checkpoint_of_a_savepoint_until_a_later_one_is_public(
        self, publish: str, published: int, gone: list[int]
    ) -> None:
        """It names no rows of the sink, but the chain of the first publication ends there. A head that carries all rows needs no chain."""
        manifests = [periodic(1), *(with_sink(k, publish=publish) for k in range(2, 6))]
        assert going(manifests, published=published) == gone

    def test_a_checkpoint_that_a_request_names(self) -> None:
        assert going([periodic(k) for k in range(1, 6)], needed={CheckpointId(2)}) == [1, 3]

    @pytest.mark.parametrize(
        ("remembered", "gone"), [(0, []), (10, []), (11, [1]), (21, [1, 2]), (31, [1, 2, 3]), (60, [1, 2, 3])]
    )
    def test_checkpoints_that_name_files_of_batches_that_a_log_remembers(self, remembered: int, gone: list[int]) -> None:
        assert going([with_sink(k, "some.parquet") for k in range(1, 6)], remembered=remembered) == gone

    def test_no_checkpoint_for_remembered_batches_whose_files_the_newest_one_names_too(self) -> None:
        manifests = [with_sink(k, "some.parquet") for k in range(1, 6)]
        newest = manifests[-1].sinks[SINK]
        one = CarriedActions(
            first=CheckpointId(1), last=CheckpointId(2), batch=BatchId(20), actions=newest.actions, replace=False
        )
        tells = newest.model_copy(update={"named_before": (one,)})
        manifests[-1] = manifests[-1].model_copy(update={"sinks": {SINK: tells}})
        assert going(manifests, remembered=0) == [1, 2]

    def test_no_checkpoint_for_remembered_batches_without_files(self) -> None:
        assert going([with_sink(k) for k in range(1, 6)], remembered=0) == [1, 2, 3]

    def test_an_abandoned_incarnation_until_it_is_closed(self) -> None:
        old = [periodic(k, incarnation=IncarnationId("old")) for k in (1, 2)]
        manifests = [*old, *(periodic(k, parent=CheckpointId(k - 1) if k > 3 else None) for k in (3, 4, 5))]
        assert going(manifests) == [3]
        assert going(manifests, closed={IncarnationId("old")}) == [1, 2, 3]

    @pytest.mark.parametrize(("published", "gone"), [(0, []), (5, [1, 2, 3])])
    def test_an_abandoned_incarnation_until_the_next_one_has_published(self, published: int, gone: list[int]) -> None:
        """The old checkpoints tell a fresh start which rows are public. Without them it would compute these rows again."""
        old = [with_sink(k).model_copy(update={"incarnation": IncarnationId("old")}) for k in (1, 2)]
        manifests = [*old, *(with_sink(k) for k in (3, 4, 5))]
        closed = {IncarnationId("old")}
        assert [k for k in going(manifests, published=published, closed=closed) if k < 3] == [k for k in gone if k < 3]


class Home:
    """A home whose checkpoints have state files. Checkpoint ``k`` names the files that it adds and the files that it takes over."""

    def __init__(self) -> None:
        self.files = MemoryFiles()
        self.store = CheckpointStore(self.files)

    def keep(self, *paths: str) -> None:
        for path in paths:
            self.files.create(path, path.encode())

    def complete(self, checkpoint: int, *stored: str) -> None:
        self.keep(*stored)
        path, digest = self.store.write_channel(CheckpointId(checkpoint), HOURLY, [])
        channel = ChannelCut(
            path=path,
            sha256=digest,
            first=BatchId(0),
            last=BatchId(0),
            in_flight_rows=0,
            in_flight_size_bytes=0,
            staged_in="file:///t",
            metadata={},
            protocol={},
            staged_for=None,
        )
        self.store.complete(periodic(checkpoint, stages={HOURLY: cut(10 * checkpoint, *stored, channel=channel)}))

    def discard(self, *checkpoints: int) -> list[str]:
        """Discards checkpoints and returns the state files that are deleted with them."""
        return [path for path in discard(self.files, map(CheckpointId, checkpoints)) if path.startswith("state/")]

    def state(self) -> list[str]:
        return sorted(path for path in self.files.contents if path.startswith("state/"))


@pytest.fixture
def home() -> Home:
    return Home()


OLD, SHARED, NEW = "state/hourly/1-1-1/old", "state/hourly/1-1-1/state/0/shared", "state/hourly/2-1-1/new"


class TestDiscarding:
    """Only files that no manifest names are deleted."""

    def test_a_file_is_deleted_with_the_last_manifest_that_names_it(self, home: Home) -> None:
        home.complete(1, OLD, SHARED)
        home.complete(2, SHARED, NEW)
        assert home.discard(1) == [OLD]
        assert home.state() == [SHARED, NEW]
        assert home.store.taken() == [2]
        assert [name.split(".")[0] for name in home.files.names("checkpoints")] == ["2"]

    def test_files_that_a_failed_try_has_written_are_deleted_once_its_number_is_settled(self, home: Home) -> None:
        home.complete(1, OLD)
        for number in (1, 2, 3):
            home.store.write_actions(CheckpointId(number), SINK, [])
        home.discard()
        assert [name.split(".")[:2] for name in home.files.names("checkpoints")] == [
            ["1", "hourly"],
            ["2", "hourly"],
            ["3", "hourly"],
        ]
        home.files.contents["manifests/2.json"] = b"{"
        home.complete(3, OLD)
        home.discard()
        left = [name.partition(".")[0] + name[-8:] for name in home.files.names("checkpoints")]
        assert left == ["1.channel", "2.actions", "3.channel"], "what a corrupt manifest may name stays"

    def test_a_directory_without_a_named_file_is_deleted_at_once(self, home: Home) -> None:
        home.complete(1, OLD, SHARED)
        home.complete(2, NEW)
        assert home.discard(1) == ["state/hourly/1-1-1"]
        assert home.state() == [NEW]

    def test_a_file_of_actions_stays_as_long_as_a_later_manifest_carries_it(self, home: Home) -> None:
        lines = [{"add": {"path": "a.parquet", "size": 1, "stats": '{"numRecords": 1}'}}]
        actions = home.store.write_actions(CheckpointId(1), SINK, lines)
        carried = CarriedActions(first=CheckpointId(1), last=CheckpointId(1), batch=BatchId(1), actions=actions, replace=False)
        home.complete(1, OLD)
        cut = with_sink(2).sinks[SINK].model_copy(update={"carried": (carried,)})
        home.store.complete(periodic(2, sinks={SINK: cut}))
        home.discard(1)
        assert f"checkpoints/{home.files.names('checkpoints')[0]}" == actions.path
        home.complete(3, NEW)
        home.discard(2)
        assert [name.split(".")[0] for name in home.files.names("checkpoints")] == ["3"]

    def test_a_discard_may_be_repeated(self, home: Home) -> None:
        home.complete(1, OLD)
        home.complete(2, NEW)
        home.discard(1)
        assert home.discard(1) == home.discard() == []
        assert home.state() == [NEW]

    def test_files_that_a_failed_try_has_kept_stay_until_its_number_is_taken(self, home: Home) -> None:
        failed = "state/hourly/2-1-1/failed"
        home.complete(1, OLD)
        home.keep(failed)
        home.discard()
        assert failed in home.state(), "its manifest may still come to exist"
        home.complete(2, OLD, "state/hourly/2-2-1/new")
        assert home.discard() == ["state/hourly/2-1-1"]
        assert home.state() == [OLD, "state/hourly/2-2-1/new"]

    def test_files_that_a_corrupt_checkpoint_has_kept_stay(self, home: Home) -> None:
        home.complete(1, OLD)
        home.complete(2, NEW)
        home.files.contents["manifests/2.json"] = b"{"
        home.complete(3, OLD)
        assert home.discard() == []
        assert home.state() == [OLD, NEW]

    def test_nothing_is_deleted_if_a_newer_version_has_written_a_manifest(self, home: Home) -> None:
        class Newer(Manifest):
            """A manifest of a later release."""

            format_version = 3

            @property
            def written_version(self) -> int:
                return self.format_version

        home.complete(1, OLD)
        home.complete(2, NEW)
        home.store.complete(Newer(**periodic(3).model_dump()))
        with pytest.raises(UnsupportedFormatError):
            home.discard()
        assert home.state() == [OLD, NEW]

    def test_other_directories_than_those_of_tries_stay(self, home: Home) -> None:
        home.complete(2, NEW)
        home.keep("state/hourly/notes", "state/hourly/1-x-1/file")
        assert home.discard() == []

    @pytest.mark.parametrize("marker", ["pipeline.json", "savepoint.json", "exporting.json", "_delta_log/0.json"])
    @pytest.mark.parametrize("named", [True, False])
    def test_a_directory_with_another_home_savepoint_or_table_inside_stays(self, home: Home, marker: str, named: bool) -> None:
        theirs = [f"state/hourly/1-1-1/{place}{file}" for place in ("", "deep/") for file in (marker, "state/hourly/1-1-1/file")]
        home.complete(1, OLD, SHARED)
        home.complete(2, *([SHARED] if named else []), NEW)
        home.keep(*theirs)
        assert home.discard(1) == []
        assert home.state() == sorted([OLD, SHARED, NEW, *theirs])
        for path in theirs:
            home.files.delete(path)
        assert home.discard() == ([OLD] if named else ["state/hourly/1-1-1"])

    def test_other_files_than_those_of_checkpoints_stay(self, home: Home) -> None:
        home.complete(2, NEW)
        theirs = ["checkpoints/1/savepoint.json", "checkpoints/1/state/hourly/1-1-1/file", "checkpoints/1.old/notes"]
        home.keep(*theirs)
        home.discard()
        assert set(theirs) <= home.files.contents.keys()

    def test_a_home_without_a_checkpoint_keeps_everything(self, home: Home) -> None:
        home.keep(NEW)
        assert home.discard() == []
        assert home.state() == [NEW]

    def test_a_crash_leaves_no_manifest_that_names_a_deleted_file(self, home: Home) -> None:
        class Crash(Exception):
            pass

        class DiesAfter:
            def __init__(self, left: int) -> None:
                self.left = left

            def before(self, step: Step) -> None:
                pass

            def after(self, step: Step) -> None:
                self.left -= 1
                if not self.left:
                    raise Crash

        for left in range(1, 9):
            home = Home()
            home.complete(1, OLD, SHARED)
            home.complete(2, SHARED, NEW, "state/hourly/2-1-1/more")
            home.complete(3, NEW)
            with suppress(Crash), observed_by(DiesAfter(left)):
                home.discard(1, 2)
            for k in home.store.ids():
                named = {file.stored for file in home.store.manifest(k).stages[HOURLY].files}
                assert named <= set(home.state())
            home.discard(1, 2)
            assert home.state() == [NEW]


@given(data=st.data())
@settings(max_examples=60)
def test_exactly_the_files_that_are_or_may_become_named_stay_after_any_history(data: st.DataObject) -> None:
    """Random histories: checkpoints that take over some files of their parent, tries that fail, and checkpoints that are discarded."""
    home, held, number = Home(), list[str](), 0
    for tries in range(data.draw(st.integers(1, 12))):
        place = f"state/hourly/{number + 1}-1-{tries}"
        new = [f"{place}/{n}" for n in range(data.draw(st.integers(0, 2)))]
        match data.draw(st.sampled_from(("fails", "completes", "discards"))):
            case "fails":
                home.keep(*new)
            case "completes":
                kept = [path for path in held if data.draw(st.booleans())]
                held, number = [*kept, *new], number + 1
                home.keep(*new)
                home.store.complete(periodic(number, *held))
            case "discards":
                home.discard(*(k for k in home.store.ids()[:-1] if data.draw(st.booleans())))
                named = {file.stored for k in home.store.ids() for file in home.store.manifest(k).stages[HOURLY].files}
                if number:
                    assert {path for path in home.state() if _number(path) <= number} == named
                assert set(held) <= set(home.state())


def _number(path: str) -> int:
    found = re.match(r"state/hourly/(\d+)-", path)
    assert found
    return int(found[1])


def test_the_batches_that_a_remaining_channel_names_are_in_flight() -> None:
    channels = {k: a_channel(10 * k, first=BatchId(10 * k - 5)) for k in (1, 2, 3)}
    manifests = [periodic(k, stages={HOURLY: cut(10 * k, channel=channels[k])}) for k in (1, 2, 3)]
    assert in_flight_from(manifests, HOURLY) == 5
    assert in_flight_from(manifests[1:], HOURLY) == 15
    assert in_flight_from(manifests, StageName("daily")) is None


@pytest.mark.parametrize(("published", "first"), [(0, 0), (1, 11), (2, 21), (3, None)])
def test_the_unpublished_batches_begin_after_the_newest_public_cut(published: int, first: int | None) -> None:
    manifests = [with_sink(k).model_copy(update={"parent": CheckpointId(k - 1) if k > 1 else None}) for k in (1, 2, 3)]
    assert unpublished_from(manifests, {SINK: CheckpointId(published)}, HOURLY) == first


def test_the_first_batch_of_unpublished_rows_is_unknown_without_the_parent_checkpoint() -> None:
    manifests = [with_sink(k).model_copy(update={"parent": CheckpointId(k - 1)}) for k in (2, 3)]
    assert unpublished_from(manifests, {SINK: CheckpointId(1)}, HOURLY) == 0


def test_rows_that_a_savepoint_has_brought_belong_to_batches_before_its_cut() -> None:
    origin = periodic(1)
    first = with_sink(2, publish="final").model_copy(update={"parent": origin.checkpoint})
    brought = CarriedActions(
        first=origin.checkpoint, last=origin.checkpoint, batch=BatchId(10), actions=first.sinks[SINK].actions, replace=False
    )
    carries = first.model_copy(update={"sinks": {SINK: first.sinks[SINK].model_copy(update={"carried": (brought,)})}})
    assert unpublished_from([origin, first], {SINK: None}, HOURLY) == 11
    assert unpublished_from([origin, carries], {SINK: None}, HOURLY) == 0
