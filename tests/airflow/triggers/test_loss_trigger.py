"""The trigger that watches a pipeline's losses of source data."""

from typing import Any, cast

import pytest

from airflow_provider.triggers.losses import LossSearch, LossTrigger
from airflow_provider.waits.checkpoints import Listing
from spark_jobs.control.channel import Channel
from spark_jobs.control.losses import LossLedger
from spark_jobs.protocol.documents import AttemptDocument
from spark_jobs.protocol.ids import InputName, LossId, PipelineName, PipelineUuid, RoundNumber, StageName
from spark_jobs.protocol.losses import LostOffsets, OffsetRange
from spark_jobs.storage.files import Files
from spark_jobs.storage.open import open_files
from tests.airflow.conftest import Homes
from tests.airflow.deferral import restarted
from tests.support.documents import SAMPLES
from tests.support.home_event_triggers import QUICK, StateStore, events_of

(ATTEMPT,) = (sample for sample in SAMPLES if isinstance(sample, AttemptDocument))
NOTHING_LISTED = Listing((), ())


@pytest.fixture
def files(homes: Homes) -> Files:
    """The files of the home ``flights``."""
    found = open_files(str(homes.path()))
    Channel(found).claim(PipelineName("flights"))
    return found


def lose(files: Files, end: int, round_number: int = 1, *, accepted: bool = False) -> None:
    """Records that the offsets before ``end`` are lost, unless they are recorded already."""
    lost = LostOffsets(input=InputName("rows"), stage=StageName("copy"), topics={"clicks": {0: OffsetRange(first=0, end=end)}})
    LossLedger(files).record(RoundNumber(round_number), ATTEMPT, [lost], accepted=[lost.input] if accepted else [])


def uuid(files: Files) -> PipelineUuid:
    pipeline = Channel(files).pipeline()
    assert pipeline is not None
    return pipeline.uuid


def found_by(search: LossSearch) -> list[LossId | None]:
    return [recorded.loss.id for _, recorded in search.find(NOTHING_LISTED)]


def test_each_open_loss_is_found_once(files: Files) -> None:
    search = LossSearch(files, None, None)
    assert found_by(search) == []
    lose(files, 3)
    lose(files, 5)
    assert (found_by(search), found_by(search)) == (["1-1", "1-2"], [])
    lose(files, 3, round_number=2)
    assert found_by(search) == ["2-1"]


def test_an_accepted_loss_is_not_reported(files: Files) -> None:
    lose(files, 3, accepted=True)
    lose(files, 5)
    assert found_by(LossSearch(files, None, None)) == ["1-2"]


def test_a_search_continues_only_after_losses_that_were_seen_of_the_same_pipeline(files: Files) -> None:
    for round_number in (2, 10):
        lose(files, 3, round_number)
    assert found_by(LossSearch(files, uuid(files), (RoundNumber(2), 1))) == ["10-1"]
    assert found_by(LossSearch(files, PipelineUuid("another"), (RoundNumber(10), 1))) == ["2-1", "10-1"]


def a_trigger(store: StateStore) -> LossTrigger:
    arguments: dict[str, Any] = {"home": "flights"} | QUICK
    made = restarted(LossTrigger(**arguments))
    assert isinstance(made, LossTrigger)
    made.asset_state_store = cast(Any, store)
    return made


def test_each_loss_is_an_event_and_a_restarted_trigger_continues_after_the_last_event(files: Files) -> None:
    store = StateStore()
    trigger = a_trigger(store)
    trigger.kept_after_s = 0.0
    first, _ = events_of(trigger, lambda: lose(files, 3), lambda: lose(files, 5))
    assert first == {
        "home": files.url,
        "loss": "1-1",
        "source": "rows",
        "stage": "copy",
        "run": ATTEMPT.run,
        "rows_at_most": 3,
        "lost": "3 offsets, such as 0 to 2 of partition 0 of topic clicks",
    }
    assert [kept["loss"] for kept in store.kept.values()] == ["1-1"]
    (again,) = events_of(a_trigger(store), lambda: None)
    assert again["loss"] == "1-2", "it may have been lost with the triggerer"
