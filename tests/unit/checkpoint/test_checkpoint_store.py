import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_jobs.checkpoint.checkpoint_store import HISTORY_KEPT, CheckpointStore
from spark_jobs.protocol.codec import canonical, encode, sha256
from spark_jobs.protocol.documents import CheckpointKind, ErrorReport, Manifest, Publish, SinkCut
from spark_jobs.protocol.errors import (
    AlreadyExistsError,
    CorruptDocumentError,
    NotFoundError,
    RejectedError,
    UnsupportedFormatError,
)
from spark_jobs.protocol.history import CheckpointHistory
from spark_jobs.protocol.ids import AppId, AttemptNumber, CheckpointId, IncarnationId, SinkName, StageName
from spark_jobs.protocol.steps import Step, observed_by
from tests.support.memory_files import MemoryFiles
from tests.support.staged_pipeline import NOW, a_manifest

SINK = SinkName("hourly")


@pytest.fixture
def files() -> MemoryFiles:
    return MemoryFiles()


@pytest.fixture
def store(files: MemoryFiles) -> CheckpointStore:
    return CheckpointStore(files)


def complete(store: CheckpointStore, *checkpoints: int, **changes: Any) -> None:
    for k in checkpoints:
        store.complete(a_manifest(k, **changes))


def damage(files: MemoryFiles, checkpoint: int) -> None:
    files.contents[f"manifests/{checkpoint}.json"] = b"{"


def a_line(path: str = "part-0.parquet", rows: int = 3, size_bytes: int = 10, batch: int = 0) -> dict[str, Any]:
    return {"add": {"path": path, "size": size_bytes, "stats": json.dumps({"numRecords": rows})}, "batch": batch}


def a_cut(store: CheckpointStore, lines: list[dict[str, Any]]) -> SinkCut:
    return SinkCut(
        stage=StageName("hourly"),
        table="file:///t",
        table_id="t",
        staged_for=(),
        partition_by=(),
        app=AppId("a"),
        actions=store.write_actions(CheckpointId(1), SINK, lines),
        publish=Publish.FINAL,
        known_published=None,
    )


def test_a_home_without_checkpoints_has_no_head(store: CheckpointStore) -> None:
    assert (store.head(), store.taken(), store.ids(), store.first_id(IncarnationId("new"))) == (None, [], [], 1)


def test_the_head_is_the_highest_number_and_not_the_last_name(store: CheckpointStore) -> None:
    complete(store, *range(1, 12))
    assert store.taken() == list(range(1, 12))
    head = store.head()
    assert head is not None
    assert head.checkpoint == 11


def test_a_manifest_is_read_back_as_it_was_written(store: CheckpointStore) -> None:
    manifest = a_manifest()
    store.complete(manifest)
    assert store.manifest(CheckpointId(1)) == manifest


def test_completing_twice_with_the_same_manifest_makes_one_checkpoint(store: CheckpointStore) -> None:
    manifest = a_manifest()
    store.complete(manifest)
    store.complete(manifest)
    assert store.taken() == [1]


def test_the_second_manifest_for_one_number_is_an_error(store: CheckpointStore) -> None:
    complete(store, 1)
    with pytest.raises(AlreadyExistsError):
        complete(store, 1)


def test_a_corrupt_manifest_is_skipped_as_head_and_reported(
    store: CheckpointStore, files: MemoryFiles, caplog: pytest.LogCaptureFixture
) -> None:
    complete(store, 1, 2)
    damage(files, 2)
    head = store.head()
    assert head is not None
    assert head.checkpoint == 1
    assert "checkpoint 2 is skipped" in caplog.text
    assert (store.taken(), store.ids(), list(store.corrupt())) == ([1, 2], [1], [2])
    assert store.corrupt()[CheckpointId(2)].evidence["path"].endswith("manifests/2.json")


def test_a_manifest_copied_under_another_number_is_corrupt(store: CheckpointStore, files: MemoryFiles) -> None:
    complete(store, 1)
    files.contents["manifests/2.json"] = files.contents["manifests/1.json"]
    with pytest.raises(CorruptDocumentError, match="says it is checkpoint 1"):
        store.manifest(CheckpointId(2))


def test_a_manifest_that_is_its_own_ancestor_is_corrupt_and_causes_no_endless_loop(store: CheckpointStore) -> None:
    complete(store, 1, parent=CheckpointId(2))
    with pytest.raises(CorruptDocumentError, match="parent 2"):
        store.chain(CheckpointId(1))


def test_a_manifest_of_a_newer_version_is_not_skipped(store: CheckpointStore, files: MemoryFiles) -> None:
    class Newer(Manifest):
        format_version = 3

        @property
        def written_version(self) -> int:
            return self.format_version

    complete(store, 1)
    files.contents["manifests/2.json"] = encode(Newer(**a_manifest(2).model_dump()))
    with pytest.raises(UnsupportedFormatError):
        store.head()


def test_a_failed_try_takes_no_number(store: CheckpointStore) -> None:
    complete(store, 1)
    store.write_actions(CheckpointId(2), SINK, [a_line()])
    assert (store.taken(), store.next_id(CheckpointId(1))) == ([1], 2)


def test_a_file_whose_name_is_not_a_number_is_not_a_checkpoint(store: CheckpointStore, files: MemoryFiles) -> None:
    files.contents |= {f"manifests/{name}.json": b"" for name in ("01", "x", "-1", "²")}
    assert store.taken() == []


def test_the_next_number_skips_corrupt_manifests_but_not_a_valid_one(store: CheckpointStore, files: MemoryFiles) -> None:
    complete(store, 1, 2, 3, 4)
    damage(files, 2)
    damage(files, 3)
    assert store.next_id(CheckpointId(1)) == 4
    damage(files, 4)
    assert store.next_id(CheckpointId(1)) == 5


def test_a_new_incarnation_begins_after_the_highest_number_also_a_corrupt_one(store: CheckpointStore, files: MemoryFiles) -> None:
    complete(store, 1, 2, 7)
    damage(files, 7)
    assert store.first_id(IncarnationId("new")) == 8


def test_an_incarnation_that_another_attempt_has_begun_gets_no_second_first_checkpoint(store: CheckpointStore) -> None:
    complete(store, 1, 2)
    begun = a_manifest(1).incarnation
    number = store.first_id(begun)
    with pytest.raises(AlreadyExistsError):
        store.complete(a_manifest(number, incarnation=begun))


def test_a_first_checkpoint_that_another_attempt_completes_meanwhile_is_noticed() -> None:
    class Racing(MemoryFiles):
        """Files in which another attempt completes checkpoint 1 after the checkpoints were listed."""

        def names(self, directory: str) -> list[str]:
            found = super().names(directory)
            if directory == "manifests" and not found:
                CheckpointStore(self).complete(a_manifest(1))
            return found

    store = CheckpointStore(Racing())
    number = store.first_id(a_manifest(1).incarnation)
    with pytest.raises(AlreadyExistsError):
        store.complete(a_manifest(number))


def test_a_chain_is_oldest_first_and_ends_above_its_lower_end(store: CheckpointStore) -> None:
    complete(store, 1, 2, 3)
    assert [m.checkpoint for m in store.chain(CheckpointId(3))] == [1, 2, 3]
    assert [m.checkpoint for m in store.chain(CheckpointId(3), down_to=CheckpointId(1))] == [2, 3]
    assert store.chain(CheckpointId(3), down_to=CheckpointId(3)) == []


def test_a_chain_does_not_need_the_manifest_of_its_lower_end(store: CheckpointStore, files: MemoryFiles) -> None:
    complete(store, 1, 2, 3)
    files.delete("manifests/1.json")
    assert [m.checkpoint for m in store.chain(CheckpointId(3), down_to=CheckpointId(1))] == [2, 3]
    with pytest.raises(NotFoundError):
        store.chain(CheckpointId(3))


def test_a_chain_never_leaves_its_incarnation(store: CheckpointStore) -> None:
    complete(store, 1, 2)
    complete(store, 3, 4, incarnation=IncarnationId("second"))
    assert [m.checkpoint for m in store.chain(CheckpointId(4))] == [3, 4]


@pytest.mark.parametrize("other", [1, 3, 9])
def test_a_number_that_is_not_an_ancestor_is_refused_by_name(store: CheckpointStore, other: int) -> None:
    complete(store, 2, parent=None)
    complete(store, 4, parent=CheckpointId(2))
    with pytest.raises(RejectedError) as refused:
        store.chain(CheckpointId(4), down_to=CheckpointId(other))
    assert refused.value.evidence == {"checkpoint": 4, "not_on_chain": other}


def test_actions_are_read_back_and_counted(store: CheckpointStore) -> None:
    lines = [a_line("a", rows=3, size_bytes=10), a_line("ü%20", rows=4, size_bytes=5, batch=1)]
    cut = a_cut(store, lines)
    assert store.read_actions(cut) == lines
    assert (cut.actions.files, cut.actions.rows, cut.actions.size_bytes) == (2, 7, 15)


def test_a_checkpoint_without_rows_has_an_empty_file_of_actions(store: CheckpointStore) -> None:
    cut = a_cut(store, [])
    assert (store.read_actions(cut), cut.actions.files, cut.actions.rows) == ([], 0, 0)


def test_tries_at_one_number_neither_collide_nor_replace_each_other(store: CheckpointStore) -> None:
    ours, zombies = a_cut(store, [a_line("ours")]), a_cut(store, [a_line("zombie's")])
    assert a_cut(store, [a_line("ours")]).actions == ours.actions
    assert [line["add"]["path"] for cut in (ours, zombies) for line in store.read_actions(cut)] == ["ours", "zombie's"]


def test_altered_actions_are_not_used(store: CheckpointStore, files: MemoryFiles) -> None:
    cut = a_cut(store, [a_line("a")])
    files.contents[cut.actions.path] = canonical(a_line("b")) + b"\n"
    with pytest.raises(CorruptDocumentError) as corrupt:
        store.read_actions(cut)
    assert corrupt.value.evidence["expected"] == cut.actions.sha256


@pytest.mark.parametrize("data", [b"1\n", b"[" * 100_000, b'{"a":\n', b"\xff\n", b"\n"])
def test_named_actions_that_are_not_lines_of_json_are_not_used(store: CheckpointStore, files: MemoryFiles, data: bytes) -> None:
    cut = a_cut(store, [])
    files.contents[cut.actions.path] = data
    named = cut.actions.model_copy(update={"sha256": sha256(data)})
    with pytest.raises(CorruptDocumentError, match="was altered"):
        store.read_actions(cut.model_copy(update={"actions": named}))


def test_a_line_that_exceeds_the_limit_is_not_read_into_memory(store: CheckpointStore, files: MemoryFiles) -> None:
    cut = a_cut(store, [a_line("a" * 1_000)])
    with pytest.raises(CorruptDocumentError, match="is larger than .* bytes, the limit for its kind"):
        CheckpointStore(files, line_max_bytes=1_000).read_actions(cut)


@pytest.mark.parametrize(
    "line",
    [
        {"remove": {"path": "a"}, "batch": 0},
        {"add": {"path": "a", "size": 1, "stats": None}, "batch": 0},
        {"add": {"path": "a", "size": 1, "stats": "{}"}, "batch": 0},
    ],
)
def test_actions_that_cannot_be_published_or_counted_are_refused_before_they_are_written(
    store: CheckpointStore, files: MemoryFiles, line: dict[str, Any]
) -> None:
    with pytest.raises(RejectedError, match="row count"):
        store.write_actions(CheckpointId(1), SINK, [a_line(), line])
    assert files.contents == {}


def test_each_durable_step_is_observed(store: CheckpointStore) -> None:
    class Recorder:
        def __init__(self) -> None:
            self.steps: list[Step] = []

        def before(self, step: Step) -> None:
            self.steps.append(step)

        def after(self, step: Step) -> None:
            pass

    recorder = Recorder()
    with observed_by(recorder):
        store.write_actions(CheckpointId(1), SINK, [])
        complete(store, 1)
    assert recorder.steps == [Step.ACTIONS_CREATE, Step.MANIFEST_CREATE]


def a_history(checkpoint: int) -> CheckpointHistory:
    return CheckpointHistory(
        checkpoint=CheckpointId(checkpoint),
        checkpoint_kind=CheckpointKind.FINAL,
        attempt=AttemptNumber(1),
        began_at=NOW,
        steps=(),
        files=0,
        size_bytes=0,
        rows=0,
    )


def test_each_try_keeps_its_own_history(store: CheckpointStore) -> None:
    assert [store.record(a_history(k)) for k in (1, 1, 10, 2)] == [
        f"history/{name}.json" for name in ("1-1", "1-2", "10-1", "2-1")
    ]
    assert [entry.checkpoint for entry in store.history()] == [1, 1, 2, 10]


def test_a_history_meets_another_attempts_entry_and_takes_the_next_number(store: CheckpointStore, files: MemoryFiles) -> None:
    class Slow(MemoryFiles):
        def names(self, directory: str) -> list[str]:
            return []

    slow = Slow()
    slow.contents = files.contents
    store.record(a_history(1))
    assert CheckpointStore(slow).record(a_history(1)) == "history/1-2.json"


def test_the_history_is_bounded_and_the_newest_tries_stay(store: CheckpointStore, files: MemoryFiles) -> None:
    for k in range(1, HISTORY_KEPT + 4):
        store.record(a_history(k))
    assert len(files.names("history")) == HISTORY_KEPT
    assert store.record(a_history(HISTORY_KEPT + 3)) == f"history/{HISTORY_KEPT + 3}-2.json"
    remembered = [entry.checkpoint for entry in store.history()]
    assert (remembered[0], remembered[-2:]) == (5, [HISTORY_KEPT + 3] * 2)


def test_failed_tries_of_all_attempts_after_a_checkpoint_are_counted(store: CheckpointStore) -> None:
    for k in (1, 2, 2, 2):
        store.record(a_history(k))
    counts = [store.failures_since(checkpoint)[0] for checkpoint in (CheckpointId(1), CheckpointId(2), None)]
    assert counts == [3, 0, 4]


def test_the_reason_of_the_newest_failed_try_is_known_unless_its_entry_is_unreadable(
    store: CheckpointStore, files: MemoryFiles
) -> None:
    for why in ("The disk is full.", "Checkpoint expired before completing."):
        report = ErrorReport(error="StorageError", retry="with_backoff", failed=why)
        store.record(a_history(1).model_copy(update={"failure": report}))
    count, newest = store.failures_since(None)
    assert newest is not None
    assert (count, newest.failed) == (2, "Checkpoint expired before completing.")
    files.contents["history/1-2.json"] = b""
    assert store.failures_since(None) == (2, None)


def test_an_unreadable_entry_of_the_history_is_skipped(store: CheckpointStore, files: MemoryFiles) -> None:
    store.record(a_history(1))
    store.record(a_history(2))
    files.contents["history/1-1.json"] = b""
    assert [entry.checkpoint for entry in store.history()] == [2]


@given(st.lists(st.sampled_from(["child", "fresh start", "corrupt", "failed try"]), max_size=12))
def test_numbers_are_never_reused_and_chains_stay_as_they_were_built(events: list[str]) -> None:
    files = MemoryFiles()
    store = CheckpointStore(files)
    lines: dict[CheckpointId, list[CheckpointId]] = {}  # the expected chain of each valid checkpoint
    used: list[CheckpointId] = []
    incarnation = 0
    for event in events:
        head = store.head()
        if event == "corrupt" and used:
            damage(files, used[-1])
            lines = {k: chain for k, chain in lines.items() if used[-1] not in chain}
        elif event == "failed try":
            store.write_actions(store.next_id(head.checkpoint) if head else CheckpointId(1), SINK, [a_line()])
        elif event in ("child", "fresh start"):
            parent = head.checkpoint if head and event == "child" else None
            incarnation += parent is None
            kept = IncarnationId(str(incarnation)) if parent is None or head is None else head.incarnation
            k = store.first_id(kept) if parent is None else store.next_id(parent)
            assert k not in used
            store.complete(a_manifest(k, parent=head.checkpoint if head else None, incarnation=kept))
            lines[k] = [*(lines[parent] if parent else []), k]
            used.append(k)
    assert store.taken() == used
    assert store.ids() == sorted(lines)
    for k, expected in lines.items():
        assert [m.checkpoint for m in store.chain(k)] == expected
        for position, ancestor in enumerate(expected):
            assert [m.checkpoint for m in store.chain(k, down_to=ancestor)] == expected[position + 1 :]
        for stranger in set(used) - set(expected):
            with pytest.raises(RejectedError):
                store.chain(k, down_to=stranger)
