"""The trigger that watches the publications of a running pipeline, with tables that delta-rs publishes."""

import asyncio
import threading
from contextlib import aclosing
from typing import Any, cast

import pytest
from airflow.sdk import Asset
from airflow.sdk.execution_time.context import AssetStateStoreAccessors

from airflow_provider.triggers.publication import PublicationTrigger
from airflow_provider.waits.checkpoints import Listing, ListingLook
from airflow_provider.waits.public_checkpoints import PublicationSearch
from spark_jobs.control.losses import LossLedger
from spark_jobs.protocol.documents import CheckpointKind, Manifest, Publish
from spark_jobs.protocol.errors import StorageError
from spark_jobs.protocol.ids import CheckpointId, IncarnationId, InputName, PipelineUuid, RoundNumber, StageName
from spark_jobs.protocol.losses import LostFile, LostFiles
from spark_jobs.publication.publisher import publish
from spark_jobs.storage.open import open_files
from spark_jobs.waits.limits import LIMITS, WaitLimits
from tests.airflow.conftest import Homes
from tests.airflow.deferral import restarted
from tests.airflow.flights import TaskLog, log_of, until
from tests.support.documents import ATTEMPT
from tests.support.home_event_triggers import QUICK, StateStore, events_of, next_event
from tests.support.staged_pipeline import DAILY, HOURLY, PIPELINE, StagedPipeline


@pytest.fixture
def staged(homes: Homes) -> StagedPipeline:
    """A pipeline with two tables, in the home ``flights``."""
    tables = homes.root / "tables"
    tables.mkdir()
    found = StagedPipeline(open_files(str(homes.path())), tables)
    found.make_table(HOURLY)
    found.make_table(DAILY)
    return found


@pytest.fixture
def publication_log(monkeypatch: pytest.MonkeyPatch) -> TaskLog:
    return log_of(monkeypatch, PublicationTrigger)


def complete(staged: StagedPipeline) -> Manifest:
    """Completes a checkpoint with a row for each table."""
    return staged.checkpoint({HOURLY: [(1, "monday")], DAILY: [(1, "monday")]})


def make_public(staged: StagedPipeline) -> Manifest:
    found = complete(staged)
    publish(staged.files, found.checkpoint)
    return found


def search(staged: StagedPipeline, seen: int | None = None) -> PublicationSearch:
    return PublicationSearch(staged.files, PIPELINE, None if seen is None else CheckpointId(seen))


def found_by(search: PublicationSearch, staged: StagedPipeline) -> list[int]:
    return [each.checkpoint for each in search.find(ListingLook(staged.files, answers=False)())]


def test_a_checkpoint_that_is_only_staged_is_not_found(staged: StagedPipeline) -> None:
    complete(staged)
    assert found_by(search(staged), staged) == []


def test_a_checkpoint_is_found_only_once_and_not_before_it_is_public(staged: StagedPipeline) -> None:
    looking = search(staged)
    complete(staged)
    assert found_by(looking, staged) == []
    publish(staged.files, CheckpointId(1))
    assert (found_by(looking, staged), found_by(looking, staged)) == ([1], [])
    make_public(staged)
    assert found_by(looking, staged) == [2]


def test_all_checkpoints_that_became_public_since_the_last_search_are_found_oldest_first(staged: StagedPipeline) -> None:
    for _ in range(3):
        make_public(staged)
    assert found_by(search(staged, seen=1), staged) == [2, 3]


def test_a_first_search_finds_only_the_newest_public_checkpoint(staged: StagedPipeline) -> None:
    for _ in range(3):
        make_public(staged)
    assert found_by(search(staged), staged) == [3]


def test_a_checkpoint_that_became_public_with_a_later_one_is_not_found(staged: StagedPipeline) -> None:
    make_public(staged)
    complete(staged)
    make_public(staged)
    assert found_by(search(staged, seen=1), staged) == [3]


def test_a_checkpoint_that_one_table_lacks_is_not_found(staged: StagedPipeline) -> None:
    make_public(staged)
    complete(staged)
    publish(staged.files, CheckpointId(2), sinks=[HOURLY])
    looking = search(staged, seen=1)
    assert found_by(looking, staged) == []
    publish(staged.files, CheckpointId(2))
    assert found_by(looking, staged) == [2]


def test_a_trigger_begins_again_in_a_home_that_was_created_again(staged: StagedPipeline) -> None:
    make_public(staged)
    looking = PublicationSearch(staged.files, PipelineUuid("another"), CheckpointId(1))
    assert found_by(looking, staged) == [1]


def a_trigger(store: StateStore | None = None, **changes: Any) -> PublicationTrigger:
    arguments: dict[str, Any] = {"home": "flights"} | QUICK | changes
    made = restarted(PublicationTrigger(**arguments))
    assert isinstance(made, PublicationTrigger)
    made.asset_state_store = cast(Any, store)
    return made


def test_each_publication_is_an_event_with_the_tables_versions(staged: StagedPipeline) -> None:
    first, second = events_of(a_trigger(), lambda: make_public(staged), lambda: make_public(staged))
    assert first == {
        "home": staged.files.url,
        "checkpoint": 1,
        "tables": {name: {"table": staged.tables[name], "version": 1} for name in (DAILY, HOURLY)},
        "behind": [],
        "exact": True,
    }
    assert (second["checkpoint"], second["tables"][HOURLY]["version"]) == (2, 2)


def test_an_event_names_a_held_table_that_a_checkpoint_is_published_without(staged: StagedPipeline) -> None:
    rows, every = {HOURLY: [(1, "a")], DAILY: [(1, "a")]}, Publish.EVERY_CHECKPOINT
    staged.checkpoint(rows, publish=every, checkpoint_kind=CheckpointKind.PERIODIC, held=(HOURLY,))
    publish(staged.files, sinks=[DAILY])
    (found,) = search(staged).find(ListingLook(staged.files, answers=False)())
    assert (found.checkpoint, list(found.tables), found.tables.behind) == (1, [DAILY], (HOURLY,))


def test_an_event_says_whether_the_checkpoint_lacks_rows_of_an_open_loss(staged: StagedPipeline) -> None:
    ledger = LossLedger(staged.files)

    def lacking() -> None:
        gone = LostFiles(input=InputName("events"), stage=StageName("hourly"), files=(LostFile(path="a"),))
        attempt = ATTEMPT.model_copy(update={"incarnation": IncarnationId("first")})
        publish(staged.files, staged.checkpoint({HOURLY: []}, losses=ledger.record(RoundNumber(2), attempt, [gone])).checkpoint)

    found = events_of(a_trigger(), lambda: make_public(staged), lacking)
    assert [each["exact"] for each in found] == [True, False]


def test_a_restarted_trigger_continues_after_the_events_that_it_sent(
    staged: StagedPipeline,
) -> None:
    store = StateStore()
    trigger = a_trigger(store)
    trigger.kept_after_s = 0.0
    events_of(trigger, lambda: make_public(staged), lambda: make_public(staged))
    assert [kept["checkpoint"] for kept in store.kept.values()] == [1]
    (again,) = events_of(a_trigger(store), lambda: make_public(staged))
    assert again["checkpoint"] == 2


def test_an_event_is_not_repeated_after_the_home_was_unavailable(staged: StagedPipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    looks_at, failures = ListingLook.__call__, list[StorageError]()
    store = StateStore()
    trigger = a_trigger(store)
    trigger.retry_after_s = 0.05

    def fails_when_told(self: ListingLook) -> Listing:
        if failures:
            raise failures[0]
        return looks_at(self)

    monkeypatch.setattr(ListingLook, "__call__", fails_when_told)

    def away_and_back() -> None:
        failures.append(StorageError("The disk is away."))
        until(lambda: store.kept)
        failures.clear()
        make_public(staged)

    found = events_of(trigger, lambda: make_public(staged), away_and_back)
    assert [each["checkpoint"] for each in found] == [1, 2]
    assert [kept["checkpoint"] for kept in store.kept.values()] == [1]


def test_a_recent_event_that_airflow_may_not_have_received_is_not_stored_yet(staged: StagedPipeline) -> None:
    store = StateStore()
    events_of(a_trigger(store), lambda: make_public(staged), lambda: make_public(staged))
    assert store.kept == {}


def test_each_event_of_an_endless_series_is_stored_once_it_is_old_enough(
    staged: StagedPipeline,
) -> None:
    store, pause = StateStore(), threading.Event()
    trigger = a_trigger(store)
    trigger.kept_after_s = 0.5

    def soon_after_the_one_before() -> None:
        pause.wait(0.25)
        make_public(staged)

    events_of(trigger, *[soon_after_the_one_before] * 6)
    (kept,) = store.kept.values()
    assert 1 <= kept["checkpoint"] <= 5


def test_a_trigger_that_two_assets_share_works_without_stored_state(staged: StagedPipeline, publication_log: TaskLog) -> None:
    two = AssetStateStoreAccessors(inlets=[Asset("one"), Asset("another")])
    (event,) = events_of(a_trigger(cast(Any, two)), lambda: make_public(staged))
    assert event["checkpoint"] == 1
    assert "is not stored, because several assets share its watcher" in publication_log.text


@pytest.mark.parametrize("interval_s", [0.0, -1.0])
def test_a_trigger_without_a_pause_between_looks_is_refused_when_its_dag_is_parsed(interval_s: float) -> None:
    with pytest.raises(ValueError, match="poll_interval_s"):
        PublicationTrigger(home="flights", poll_interval_s=interval_s)


def test_a_home_outside_the_roots_is_never_read(homes: Homes, publication_log: TaskLog) -> None:
    trigger = a_trigger(home="/etc")

    async def work() -> None:
        async with aclosing(cast(Any, trigger.run())) as events:
            waiting = asyncio.create_task(next_event(events))
            await asyncio.to_thread(until, lambda: "inside none of the connection's home roots" in publication_log.text)
            assert waiting.cancel(), "there was no event"
            await asyncio.gather(waiting, return_exceptions=True)

    asyncio.run(work())


@pytest.mark.parametrize(
    "hangs", ["airflow_provider.triggers.home_events.open_allowed_home", f"{PublicationSearch.__module__}.PublicationSearch.find"]
)
def test_a_storage_that_does_not_answer_is_logged_and_read_again(
    staged: StagedPipeline, monkeypatch: pytest.MonkeyPatch, publication_log: TaskLog, hangs: str
) -> None:
    trigger = a_trigger()
    trigger.retry_after_s, trigger.wait_limits = 0.05, WaitLimits(storage_s=0.2)
    make_public(staged)
    back = threading.Event()

    def hang(*_: object) -> None:
        back.wait(30.0)
        raise StorageError("The mount was away.", safe="Nothing was changed.", remedy="Look again.")

    def answers_again() -> None:
        until(lambda: "cannot be read: the storage does not answer" in publication_log.text)
        hung.undo()
        trigger.wait_limits = LIMITS
        back.set()

    with monkeypatch.context() as hung:
        hung.setattr(hangs, hang)
        (event,) = events_of(trigger, answers_again)
    assert event["checkpoint"] == 1


def test_an_unreadable_table_log_does_not_end_the_trigger(staged: StagedPipeline, homes: Homes, publication_log: TaskLog) -> None:
    make_public(staged)
    log = homes.root / "tables" / HOURLY / "_delta_log"
    log.rename(log.with_name("away"))
    trigger = a_trigger()
    trigger.retry_after_s = 0.05

    def comes_back() -> None:
        until(lambda: "cannot be read" in publication_log.text)
        log.with_name("away").rename(log)

    (event,) = events_of(trigger, comes_back)
    assert event["checkpoint"] == 1
