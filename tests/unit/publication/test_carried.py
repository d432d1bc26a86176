"""A checkpoint carries the unpublished actions of earlier checkpoints. Their publication then needs no other manifest."""

from typing import Any

import pytest

from spark_jobs.checkpoint import carried as module
from spark_jobs.checkpoint.carried import carried
from spark_jobs.checkpoint.retention import discard, discardable, kept
from spark_jobs.protocol.documents import CarriedActions, CheckpointKind, Manifest, Publish
from spark_jobs.protocol.errors import NotFoundError, RejectedError
from spark_jobs.protocol.ids import BatchId, CheckpointId, IncarnationId, RoundNumber, StageName
from spark_jobs.publication.pending import pending_lines
from spark_jobs.publication.publisher import publish
from tests.support.staged_pipeline import HOURLY, Row, StagedPipeline, a_stage_cut

STAGE = StageName(HOURLY)


def complete(pipeline: StagedPipeline, *rows: Row, final: bool = False, known: int | None = None, **changes: Any) -> Manifest:
    """Completes the next checkpoint of a round. It carries as much as the product allows."""
    parent = pipeline.store.head()
    number = CheckpointId((parent.checkpoint if parent else 0) + 1)
    reached = None if known is None else CheckpointId(known)
    cut = a_stage_cut(number)
    before = () if changes.get("replace") else carried(pipeline.store, number, parent, HOURLY, reached)
    kind = CheckpointKind.FINAL if final else CheckpointKind.PERIODIC
    own = {"carried": tuple(before)}
    fields: dict[str, Any] = {
        "checkpoint_kind": kind,
        "stages": {STAGE: cut},
        "round": RoundNumber(1),
        "known_published": reached,
        "cut": own,
    }
    return pipeline.checkpoint({HOURLY: rows}, **(fields | changes))


@pytest.fixture
def audited(pipeline: StagedPipeline, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> StagedPipeline:
    """Two rounds of five checkpoints with external publication. Unneeded checkpoints are discarded after each one."""
    monkeypatch.setattr(module, "CARRIED_MAX", request.param)
    for number in range(1, 11):
        final, this_round = number % 5 == 0, RoundNumber(1 + (number > 5))
        graph = {"sources": {"events": {"bounded": True}}}
        complete(pipeline, (number, "a"), final=final, publish=Publish.EXTERNAL, graph=graph, round=this_round)
        manifests, reached = pipeline.store.manifests(), {HOURLY: None}
        stay = kept(manifests, retained=1, published=reached)
        gone = discardable(manifests, stay, remembered={STAGE: BatchId(1_000)}, published=reached)
        discard(pipeline.files, gone)
    return pipeline


MERGED_OR_NOT = pytest.mark.parametrize("audited", [2, 64], indirect=True, ids=["merged files", "separate files"])


@MERGED_OR_NOT
def test_a_round_with_external_publication_keeps_only_its_last_checkpoint(audited: StagedPipeline) -> None:
    assert audited.store.taken() == [5, 9, 10], "the last of each round, and the head's parent"
    with pytest.raises(RejectedError, match="published only with final checkpoints. Checkpoint 9 is periodic"):
        publish(audited.files, CheckpointId(9))
    assert audited.rows(HOURLY) == []


@MERGED_OR_NOT
@pytest.mark.parametrize("asked", [(5, 10), (10,), (10, 5), (5, 5, 10, 5)])
def test_each_round_can_be_published_by_its_number_and_each_row_is_public_once(
    audited: StagedPipeline, asked: tuple[int, ...]
) -> None:
    ends = []
    for number in asked:
        results = publish(audited.files, CheckpointId(number))
        assert results[HOURLY].rows == 5
        ends.append(number)
        assert audited.rows(HOURLY) == sorted([(row, "a") for row in range(1, max(ends) + 1)], key=str)
    assert audited.commits(HOURLY) == sorted({asked[0], 10})


def spans(manifest: Manifest) -> list[tuple[int, int]]:
    return [(each.first, each.last) for each in manifest.sinks[HOURLY].carried]


def test_the_final_checkpoint_publishes_rows_of_discarded_ones_in_one_transaction(pipeline: StagedPipeline) -> None:
    for number in (1, 2, 3):
        complete(pipeline, (number, "a"))
        discard(pipeline.files, [CheckpointId(each) for each in range(1, number - 1)])
    complete(pipeline, (4, "a"), final=True)
    discard(pipeline.files, [CheckpointId(1), CheckpointId(2)])
    assert pipeline.store.taken() == [3, 4]
    assert len(pending_lines(pipeline.files, HOURLY)) == 4
    result = publish(pipeline.files, by_policy=True)[HOURLY]
    assert (pipeline.rows(HOURLY), pipeline.commits(HOURLY)) == ([(1, "a"), (2, "a"), (3, "a"), (4, "a")], [4])
    assert result.rows == 4
    assert publish(pipeline.files, by_policy=True)[HOURLY] == result


@pytest.mark.parametrize("damaged", [1, 2])
def test_the_final_checkpoint_publishes_rows_of_a_damaged_one(pipeline: StagedPipeline, damaged: int) -> None:
    for number in (1, 2, 3):
        complete(pipeline, (number, "a"))
    pipeline.files.replace(f"manifests/{damaged}.json", b"torn")
    assert publish(pipeline.files, by_policy=True)[HOURLY].rows == 3, "a start asks before the round has ended"
    complete(pipeline, (4, "a"), final=True)
    assert publish(pipeline.files, by_policy=True)[HOURLY].rows == 4
    assert (pipeline.rows(HOURLY), pipeline.commits(HOURLY)) == ([(1, "a"), (2, "a"), (3, "a"), (4, "a")], [4])


@pytest.mark.parametrize("first_is_discarded", [False, True])
def test_rows_that_a_savepoint_has_brought_are_counted_with_its_round(pipeline: StagedPipeline, first_is_discarded: bool) -> None:
    number = pipeline.store.first_id(IncarnationId("first"))
    actions = pipeline.store.write_actions(number, HOURLY, pipeline.stage(HOURLY, [(1, "a"), (2, "a")], number))
    saved = CarriedActions(first=number, last=number, batch=BatchId(number), actions=actions, replace=False)
    pipeline.checkpoint({}, stages={STAGE: a_stage_cut(number)}, round=RoundNumber(1), brought={HOURLY: (saved,)})
    complete(pipeline, (3, "a"))
    complete(pipeline, (4, "a"), final=True)
    if first_is_discarded:
        discard(pipeline.files, [number])
    assert publish(pipeline.files, by_policy=True)[HOURLY].rows == len(pipeline.rows(HOURLY)) == 4


def test_public_rows_are_not_carried(pipeline: StagedPipeline) -> None:
    complete(pipeline, (1, "a"), final=True)
    publish(pipeline.files)
    assert spans(complete(pipeline, (2, "a"), known=1)) == []
    assert spans(complete(pipeline, (3, "a"), known=1)) == [(2, 2)]


def test_a_checkpoint_without_rows_is_not_carried(pipeline: StagedPipeline) -> None:
    for rows in ([(1, "a")], [], [(3, "a")]):
        complete(pipeline, *rows)
    assert spans(complete(pipeline)) == [(1, 1), (3, 3)]


def test_many_files_of_actions_become_one_and_are_still_published_once(
    pipeline: StagedPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CARRIED_MAX", 3)
    manifests = [complete(pipeline, (number, "a")) for number in range(1, 9)]
    assert [spans(each) for each in manifests[3:6]] == [[(1, 1), (2, 2), (3, 3)], [(1, 3), (4, 4)], [(1, 3), (4, 4), (5, 5)]]
    complete(pipeline, final=True)
    publish(pipeline.files, by_policy=True)
    assert pipeline.rows(HOURLY) == [(number, "a") for number in range(1, 9)]


def test_carried_rows_of_a_complete_result_still_replace_the_rows_of_the_table(pipeline: StagedPipeline) -> None:
    complete(pipeline, (1, "a"), final=True)
    publish(pipeline.files)
    complete(pipeline, (2, "a"), known=1, replace=True)
    complete(pipeline, (3, "a"), known=1)
    complete(pipeline, (4, "a"), known=1, final=True)
    discard(pipeline.files, [CheckpointId(1), CheckpointId(2)])
    publish(pipeline.files, by_policy=True)
    assert pipeline.rows(HOURLY) == [(2, "a"), (3, "a"), (4, "a")]


def test_the_first_final_checkpoint_carries_all_unpublished_ones_of_another_policy(pipeline: StagedPipeline) -> None:
    for number in (1, 2):
        complete(pipeline, (number, "a"), publish=Publish.EXTERNAL)
    assert spans(complete(pipeline, (3, "a"))) == [(1, 1), (2, 2)]


def test_a_gap_in_the_chain_is_an_error_if_rows_are_not_carried(pipeline: StagedPipeline) -> None:
    for number in (1, 2, 3):
        pipeline.checkpoint({HOURLY: [(number, "a")]}, publish=Publish.EVERY_CHECKPOINT)
    discard(pipeline.files, [CheckpointId(1)])
    with pytest.raises(NotFoundError):
        publish(pipeline.files)
    assert pipeline.rows(HOURLY) == []


def test_a_table_in_the_middle_of_a_merged_file_is_refused(pipeline: StagedPipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    complete(pipeline, (1, "a"))
    publish(pipeline.files, policy=Publish.EVERY_CHECKPOINT)
    monkeypatch.setattr(module, "CARRIED_MAX", 1)
    complete(pipeline, (2, "a"))
    complete(pipeline, (3, "a"))  # a mistake: the checkpoint does not know of the publication
    complete(pipeline, final=True)
    discard(pipeline.files, [CheckpointId(1), CheckpointId(2), CheckpointId(3)])
    with pytest.raises(RejectedError, match="in the middle of the files of checkpoints 1 to"):
        publish(pipeline.files, by_policy=True)
