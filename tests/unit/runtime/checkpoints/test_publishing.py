"""The order in which each sink publishes checkpoints, while further ones complete."""

from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_jobs.protocol.documents import Manifest, Publish
from spark_jobs.protocol.errors import (
    AccessDeniedError,
    FencedError,
    NotFoundError,
    StreamPipelineError,
    UnsupportedTableError,
)
from spark_jobs.protocol.ids import CheckpointId, SinkName
from spark_jobs.runtime.checkpoints import publishing
from spark_jobs.runtime.checkpoints.blocked_publication import Blocking
from spark_jobs.runtime.checkpoints.publishing import Publishing
from tests.support.staged_pipeline import a_manifest, a_sink_cut

SINKS = APPENDED, MERGED, REPORTED = SinkName("appended"), SinkName("merged"), SinkName("reported")
REFUSED = AccessDeniedError("The table refuses.")


class Blocked:
    """The block of a publication, whose retry is due when the test says so."""

    def __init__(self) -> None:
        self.is_blocked, self.due = False, False
        self.held: tuple[SinkName, ...] = ()
        self.refuses_to_wait: StreamPipelineError | None = None
        self.failures: list[tuple[int, str]] = []

    @property
    def all_wait(self) -> bool:
        return self.is_blocked and not self.held

    def is_due(self) -> bool:
        return self.due

    def got_through(self) -> None:
        self.is_blocked, self.held = False, ()

    def failed(self, manifest: Manifest, error: StreamPipelineError) -> None:
        self.is_blocked = True
        self.failures.append((manifest.checkpoint, type(error).__name__))
        if self.refuses_to_wait is not None:
            raise self.refuses_to_wait


class Pipeline:
    """A pipeline whose checkpoints complete and whose publications end when the test says so. A check ends immediately."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        *,
        sinks: Sequence[SinkName] = (APPENDED, MERGED),
        begun_at: int = 0,
        shown: int | None = None,
        is_blocked: bool = False,
        begun_with: Sequence[SinkName] | None = None,
    ) -> None:
        self._sinks = {sink: a_sink_cut(sink) for sink in sinks}
        self.ended: set[tuple[str, int]] = set()
        self.blocked, self.is_live = Blocked(), True
        self.blocked.is_blocked = is_blocked
        self.under_way: dict[str, Callable[[StreamPipelineError | None], None]] = {}
        """Functions that end a publication, by sink or under ``all``. If checks are held, ``check`` has the function that ends a check."""
        self.holds_checks = False
        self.begun: list[tuple[str, int]] = []
        self.misfits: list[StreamPipelineError] = []
        self.refusal: StreamPipelineError | None = None
        """The error of a publication of all sinks."""
        self.on_hold: tuple[SinkName, ...] = ()
        """The sinks that a publication leaves out."""
        self.newest = begun_at
        self._shown = shown
        monkeypatch.setattr(publishing, "run_in_background", self._begin)
        had = sinks if begun_with is None else begun_with
        parent = a_manifest(begun_at, sinks={sink: self._sinks[sink] for sink in had}) if begun_at else None
        self.publishing = Publishing(self, cast(Blocking, self.blocked), self._check_live, parent)

    def manifest(self, number: int) -> Manifest:
        return a_manifest(number, sinks=self._sinks)

    def complete(self) -> None:
        """Completes the next checkpoint."""
        self.newest += 1
        self.look()

    def look(self) -> None:
        """Looks twice, because work that a check allows begins at the next look."""
        for _ in range(2):
            self.publishing.advance(self.manifest(self.newest) if self.newest else None)

    def end(self, what: str, error: StreamPipelineError | None = None) -> None:
        self.under_way.pop(what)(error)
        self.ended.add(next(each for each in reversed(self.begun) if each[0] == what))
        self.look()

    def check(self, manifest: Manifest) -> None:
        if self.misfits:
            raise self.misfits.pop(0)

    def publish_sink(self, manifest: Manifest, sink: SinkName) -> None:
        raise NotImplementedError("the test ends it")

    def publish_all(self, manifest: Manifest) -> None:
        if self.refusal is None:
            self.blocked.got_through()
        else:
            self.blocked.held = self.on_hold
            self.blocked.failed(manifest, self.refusal)

    def shown(self) -> CheckpointId | None:
        return None if self._shown is None else CheckpointId(self._shown)

    def _check_live(self) -> None:
        if not self.is_live:
            raise FencedError("A later attempt is live.")

    def _begin(self, work: partial[None]) -> Future[None]:
        future: Future[None] = Future()
        (step,) = work.args
        name = step.func.__name__
        if name == "publish_sink":
            manifest, sink = step.args
            self.begun.append((sink, manifest.checkpoint))
            self.under_way[sink] = partial(self._end, future)
            return future
        if name == "_publish_all":
            self.begun.append(("all", step.args[0].checkpoint))
            self.under_way["all"] = partial(self._end_all, future, work)
            return future
        if name == "check" and self.holds_checks:
            self.under_way[name] = lambda error: self._end(future, error)
            return future
        self._end(future, None, work)
        return future

    def _end_all(self, future: Future[None], work: Callable[[], None], error: StreamPipelineError | None) -> None:
        self.refusal = error
        self._end(future, None, work)

    def _end(self, future: Future[None], error: StreamPipelineError | None, work: Callable[[], None] = lambda: None) -> None:
        def fails() -> None:
            if error is not None:
                raise error

        try:
            if error is None:
                work()
            else:
                self.publishing._watched(fails)
            future.set_result(None)
        except Exception as failure:  # noqa: BLE001 - what a thread's future holds
            future.set_exception(failure)


@pytest.fixture
def pipeline(monkeypatch: pytest.MonkeyPatch) -> Pipeline:
    return Pipeline(monkeypatch)


@pytest.mark.parametrize("begun_with", [(), (APPENDED,)])
def test_a_new_sink_begins_with_the_first_checkpoint_that_has_it(
    begun_with: Sequence[SinkName], monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = Pipeline(monkeypatch, begun_at=4, shown=4, begun_with=begun_with)
    pipeline.complete()
    assert sorted(pipeline.begun) == [(APPENDED, 5), (MERGED, 5)]


def test_checkpoints_complete_while_a_sink_is_published_and_other_sinks_publish_them(pipeline: Pipeline) -> None:
    pipeline.complete()
    for _ in range(2):
        pipeline.end(APPENDED)
        pipeline.complete()
    assert pipeline.begun == [(APPENDED, 1), (MERGED, 1), (APPENDED, 2), (APPENDED, 3)]


def test_a_sink_that_is_behind_publishes_up_to_the_newest_checkpoint_at_once(pipeline: Pipeline) -> None:
    for _ in range(4):
        pipeline.complete()
    pipeline.end(APPENDED)
    pipeline.end(MERGED)
    assert pipeline.begun[2:] == [(APPENDED, 4), (MERGED, 4)]


def test_all_tables_reach_a_common_checkpoint_before_any_of_them_passes_it(pipeline: Pipeline) -> None:
    """The append publishes independently until the slow merge has chosen its next checkpoint."""
    pipeline.complete()
    pipeline.complete()
    pipeline.end(APPENDED)
    pipeline.complete()
    pipeline.end(MERGED)
    assert pipeline.begun[2:] == [(APPENDED, 2), (MERGED, 3)]
    assert pipeline.publishing.shown == 1
    pipeline.complete()
    pipeline.complete()
    pipeline.end(APPENDED)
    assert pipeline.begun[4:] == [(APPENDED, 3)], "not 5"
    pipeline.end(MERGED)
    pipeline.end(APPENDED)
    assert pipeline.publishing.shown == 3
    assert pipeline.begun[5:] == [(MERGED, 5), (APPENDED, 5)]


def test_a_table_that_has_passed_a_checkpoint_has_no_version_of_it_when_the_others_publish_it(pipeline: Pipeline) -> None:
    pipeline.complete()
    pipeline.complete()
    pipeline.end(APPENDED)
    pipeline.complete()
    pipeline.end(MERGED)
    pipeline.end(MERGED)
    assert pipeline.begun[2:] == [(APPENDED, 2), (MERGED, 3)]
    pipeline.end(APPENDED, REFUSED)
    pipeline.end("all")
    assert pipeline.begun[4] == ("all", 2)
    assert pipeline.publishing.reached == {APPENDED: 2, MERGED: 3}
    assert pipeline.publishing.shown == 1, "no table shows 2 but one"


def publications_apart(pipeline: Pipeline, events: list[str]) -> int:
    """Completes checkpoints and ends publications. Returns the most that every table had before all showed the same checkpoint."""
    since, most = Counter[str](), 0
    for event in events:
        shown = pipeline.publishing.shown
        if event == "complete":
            pipeline.complete()
        elif event in pipeline.under_way:
            pipeline.end(event)
            since[event] += 1
        if pipeline.publishing.shown != shown:
            since.clear()
        most = max(most, min(since[sink] for sink in SINKS))
    return most


EVENTS = st.lists(st.sampled_from(["complete", *SINKS]), max_size=200)


@given(EVENTS)
def test_all_tables_show_one_checkpoint_after_two_publications_of_each_however_long_they_take(events: list[str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        pipeline = Pipeline(patch, sinks=SINKS)
        assert publications_apart(pipeline, events) < 2
        shown = set.intersection(*({number for sink, number in pipeline.ended if sink == each} for each in SINKS))
        assert pipeline.publishing.shown == max(shown, default=None)


def test_tables_that_always_publish_the_newest_checkpoint_may_never_show_the_same_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Publishing, "_target", lambda publishing, *_: publishing._checked)
    pipeline = Pipeline(monkeypatch, sinks=SINKS)
    in_turn = ["complete", APPENDED, REPORTED, "complete", MERGED]
    assert publications_apart(pipeline, ["complete", *in_turn * 10]) >= 8


def test_a_checkpoint_that_a_check_may_be_reading_is_not_deleted_although_it_is_public(pipeline: Pipeline) -> None:
    pipeline.complete()
    pipeline.end(APPENDED)
    pipeline.holds_checks = True
    pipeline.complete()
    pipeline.end(MERGED)
    assert pipeline.publishing.reached == {APPENDED: 1}
    pipeline.under_way.pop("check")(None)
    pipeline.look()
    assert pipeline.publishing.reached == {APPENDED: 1, MERGED: 1}


def test_a_checkpoint_that_a_table_refuses_in_the_check_is_published_to_no_table(pipeline: Pipeline) -> None:
    pipeline.misfits = [UnsupportedTableError("The rows do not fit.")]
    pipeline.complete()
    pipeline.end("all", UnsupportedTableError("The rows do not fit."))
    assert (pipeline.begun, pipeline.blocked.failures) == ([("all", 1)], [(1, "UnsupportedTableError")])


def test_a_failed_publication_blocks_all_sinks_once_running_publications_have_ended(pipeline: Pipeline) -> None:
    pipeline.complete()
    pipeline.end(MERGED, REFUSED)
    pipeline.complete()
    assert (pipeline.begun, pipeline.blocked.failures) == ([(APPENDED, 1), (MERGED, 1)], [])
    pipeline.end(APPENDED)
    assert pipeline.begun[2:] == [("all", 1)], "one thread finds out whether it fails again"
    pipeline.complete()
    assert not pipeline.publishing.is_settled(pipeline.manifest(1))
    pipeline.end("all", REFUSED)
    assert pipeline.blocked.failures == [(1, "AccessDeniedError")], "people are told of the checkpoint that has failed"
    assert pipeline.publishing.is_settled(pipeline.manifest(1)), "nobody is kept waiting for it"
    assert pipeline.begun[3:] == [("all", 3)], "a newer checkpoint is another try"


@pytest.mark.parametrize("again", ["after a while", "with the next checkpoint"])
def test_a_blocked_publication_is_retried_by_one_thread_until_it_succeeds(pipeline: Pipeline, again: str) -> None:
    pipeline.complete()
    pipeline.end(MERGED, REFUSED)
    pipeline.end(APPENDED)
    pipeline.end("all", REFUSED)
    for _ in range(2):
        pipeline.blocked.due = again == "after a while"
        pipeline.look() if pipeline.blocked.due else pipeline.complete()
        pipeline.blocked.due = False
        pipeline.end("all", REFUSED)
    assert [what for what, _ in pipeline.begun[2:]] == ["all"] * 3
    pipeline.complete()
    newest = pipeline.newest
    pipeline.end("all")
    assert pipeline.publishing.shown == newest
    pipeline.complete()
    assert pipeline.begun[-2:] == [(APPENDED, newest + 1), (MERGED, newest + 1)]


def test_one_failure_does_not_block_the_other_tables_for_long(pipeline: Pipeline) -> None:
    pipeline.complete()
    pipeline.end(MERGED, REFUSED)
    pipeline.end(APPENDED)
    pipeline.end("all")
    pipeline.complete()
    assert pipeline.begun[2:] == [("all", 1), (APPENDED, 2), (MERGED, 2)]
    assert pipeline.blocked.failures == [], "people are told of nothing"


def test_other_tables_get_each_checkpoint_while_the_hold_of_one_lasts(pipeline: Pipeline) -> None:
    pipeline.on_hold = (MERGED,)
    pipeline.complete()
    pipeline.end(APPENDED)
    pipeline.end(MERGED, REFUSED)
    pipeline.end("all", REFUSED)
    for number in (2, 3):
        pipeline.complete()
        assert not pipeline.publishing.is_settled(pipeline.manifest(number)), "the other one has it first"
        pipeline.end("all", REFUSED)
        assert pipeline.publishing.is_settled(pipeline.manifest(number))
        assert pipeline.publishing.reached == {APPENDED: number}, "what the held one lacks is kept"
    assert pipeline.begun[2:] == [("all", 1), ("all", 2), ("all", 3)]
    pipeline.complete()
    pipeline.end("all")
    assert pipeline.publishing.shown == 4
    pipeline.complete()
    assert pipeline.begun[-2:] == [(APPENDED, 5), (MERGED, 5)]


def test_all_tables_wait_after_the_hold_of_one_has_ended(pipeline: Pipeline) -> None:
    pipeline.on_hold = (MERGED,)
    pipeline.complete()
    pipeline.end(APPENDED)
    pipeline.end(MERGED, REFUSED)
    pipeline.end("all", REFUSED)
    pipeline.on_hold = ()
    pipeline.complete()
    pipeline.end("all", REFUSED)
    assert pipeline.publishing.reached == {APPENDED: 1}
    assert pipeline.publishing.is_settled(pipeline.manifest(2)), "nobody is kept waiting"


@pytest.mark.parametrize("error", [NotFoundError("Staged files are gone."), FencedError("A later attempt is live.")])
def test_a_publication_that_can_never_succeed_ends_the_attempt(pipeline: Pipeline, error: StreamPipelineError) -> None:
    pipeline.complete()
    with pytest.raises(type(error)):
        pipeline.end(MERGED, error)


def test_a_failed_publication_in_a_fenced_attempt_does_not_count_for_the_table(pipeline: Pipeline) -> None:
    pipeline.complete()
    pipeline.is_live = False
    with pytest.raises(FencedError):
        pipeline.end(MERGED, NotFoundError("Staged files are gone."))


def test_staged_rows_that_may_be_deleted_soon_end_the_attempt_although_the_table_may_accept_them_later(
    pipeline: Pipeline,
) -> None:
    pipeline.blocked.refuses_to_wait = UnsupportedTableError("A VACUUM may delete them.")
    pipeline.misfits = [UnsupportedTableError("The rows do not fit.")]
    pipeline.complete()
    with pytest.raises(UnsupportedTableError, match="VACUUM"):
        pipeline.end("all", UnsupportedTableError("The rows do not fit."))


def test_the_last_publication_waits_for_running_ones_and_no_other_begins(pipeline: Pipeline) -> None:
    pipeline.complete()
    pipeline.complete()
    left = [APPENDED, MERGED]

    def pause() -> None:
        pipeline.end(left.pop(0))

    pipeline.publishing.rest(pause)
    assert (left, pipeline.under_way) == ([], {})
    assert len(pipeline.begun) == 2


def test_an_attempt_continues_after_the_checkpoint_that_its_start_has_published(monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = Pipeline(monkeypatch, begun_at=7)
    pipeline.look()
    assert (pipeline.begun, pipeline.publishing.shown) == ([], 7)


def test_an_attempt_that_begins_with_a_table_that_refuses_knows_the_checkpoint_of_all_tables(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pipeline = Pipeline(monkeypatch, begun_at=7, shown=5, is_blocked=True)
    pipeline.blocked.due = True
    pipeline.look()
    assert (pipeline.begun, pipeline.publishing.shown) == ([("all", 7)], 5)


def test_a_sink_with_external_publication_is_not_published_and_not_waited_for(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    def manifest(number: int) -> Manifest:
        cuts: dict[SinkName, Any] = {APPENDED: a_sink_cut(APPENDED), REPORTED: a_sink_cut(REPORTED, publish=Publish.EXTERNAL)}
        return a_manifest(number, sinks=cuts)

    monkeypatch.setattr(pipeline, "manifest", manifest)
    pipeline.complete()
    pipeline.end(APPENDED)
    assert pipeline.begun == [(APPENDED, 1)]
    assert pipeline.publishing.is_settled(manifest(1))
    assert pipeline.publishing.shown is None, "the other table may not have it"
