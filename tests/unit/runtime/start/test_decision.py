"""The decision about a start request, from the documents of a home alone."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar, cast

import pytest

from spark_jobs.protocol.adopted_offsets import AdoptedOffsets
from spark_jobs.protocol.documents import (
    CheckpointKind,
    Manifest,
    OnEnd,
    OnRewind,
    Publish,
    RestoreFrom,
    RoundDocument,
)
from spark_jobs.protocol.errors import RejectedError
from spark_jobs.protocol.ids import (
    BatchId,
    CheckpointId,
    IncarnationId,
    InputName,
    LossId,
    RoundNumber,
    RunId,
    SinkName,
    StageName,
)
from spark_jobs.runtime.start.decision import (
    Answer,
    Begin,
    BeginFromSavepoint,
    BeginIncarnation,
    Continue,
    HomeFacts,
    check_spark,
    continued,
    decide,
    goes_on_from,
    inputs_to_renew,
    replace_round,
    stage_fates,
    without_stages,
)
from tests.support.start_decisions import GRAPH, PARAMETERS, READING, attempt, facts, manifest, request, round_document

pytestmark = pytest.mark.every_version


def test_the_first_start_begins_the_first_incarnation() -> None:
    assert decide(request("a"), facts([], None), PARAMETERS, GRAPH) == BeginIncarnation(RoundNumber(1), None, OnRewind.REFUSE)


def test_an_interrupted_round_is_continued_by_the_same_run() -> None:
    latest = round_document(1, "a")
    assert decide(request("a"), facts([attempt(1, "a", 1)], latest), PARAMETERS, GRAPH) == Continue(latest)


def test_an_interrupted_round_is_continued_by_another_run() -> None:
    latest = round_document(1, "a")
    assert decide(request("b"), facts([attempt(1, "a", 1)], latest), PARAMETERS, GRAPH) == Continue(latest)


WORDS: list[tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = [
    ({"flights": "/mistyped"}, GRAPH, {}),
    (PARAMETERS, {"stages": {"hourly": {"inputs": {}}}}, {}),
    (PARAMETERS, GRAPH, {"on_end": OnEnd.DRAIN}),
]


@pytest.mark.parametrize(("parameters", "graph", "options"), WORDS)
def test_a_first_round_without_a_planned_batch_is_replaced_by_a_start_with_other_options(
    parameters: dict[str, Any], graph: dict[str, Any], options: dict[str, Any]
) -> None:
    home = facts([attempt(1, "a", 1)], round_document(1, "a"), staging=False)
    found = decide(request("b", **options), home, parameters, graph)
    assert found == BeginIncarnation(RoundNumber(2), IncarnationId("one"), OnRewind.REFUSE)


def test_a_later_round_without_a_planned_batch_is_replaced_and_keeps_the_state() -> None:
    second = attempt(2, "b", 2).model_copy(update={"restored_from": CheckpointId(7)})
    home = facts([attempt(1, "a", 1), second], round_document(2, "b"), manifest(7, 1), staging=False)
    assert decide(request("b"), home, {"flights": "/other"}, GRAPH) == Begin(RoundNumber(3), CheckpointId(7))
    with pytest.raises(RejectedError, match="checkpoint 7: the pipeline has none of its stages"):
        decide(request("b"), home, PARAMETERS, {"stages": {}})


def test_a_round_without_a_planned_batch_keeps_its_pins_if_it_begins_again_with_the_same_options() -> None:
    latest = round_document(1, "a")
    assert decide(request("a"), facts([attempt(1, "a", 1)], latest, staging=False), PARAMETERS, GRAPH) == Continue(latest)


def test_both_runs_of_a_continued_round_get_its_answer() -> None:
    final = manifest(1, 1)
    home = facts([attempt(1, "a", 1), attempt(2, "b", 1)], round_document(1, "a"), final)
    assert [decide(request(run), home, PARAMETERS, GRAPH) for run in "ab"] == [Answer(final), Answer(final)]


def test_an_interrupted_round_is_not_continued_with_other_parameters() -> None:
    home = facts([attempt(1, "a", 1)], round_document(1, "a"))
    with pytest.raises(RejectedError, match=r"run a with other parameters \(flights\)"):
        decide(request("b"), home, {"flights": "/other"}, GRAPH)


def test_an_interrupted_first_round_may_get_other_parameters_if_a_source_is_taken_as_new() -> None:
    latest = round_document(1, "a")
    home = facts([attempt(1, "a", 1)], latest)
    found = decide(request("a", new_sources=(InputName("departures"),)), home, {"flights": "/other"}, GRAPH)
    assert found == Continue(latest)
    assert replace_round(found, home) == BeginIncarnation(RoundNumber(2), IncarnationId("one"), OnRewind.REFUSE, {}, latest)


@pytest.mark.parametrize("is_replaced", [False, True])
def test_a_run_reads_a_source_from_the_beginning_once_even_if_its_round_is_replaced(is_replaced: bool) -> None:
    asked: dict[str, Any] = {"new_sources": (InputName("arrivals"), InputName("departures"))}
    interrupted = round_document(1, "a").model_copy(update={"taken_anew": (InputName("departures"),)})
    decision = Begin(RoundNumber(2), CheckpointId(1), interrupted=interrupted) if is_replaced else Continue(interrupted)
    assert inputs_to_renew(request("a", **asked), decision) == {"arrivals"}
    assert inputs_to_renew(request("b", **asked), decision) == {"arrivals", "departures"}


@pytest.mark.parametrize("staging", [True, False])
def test_a_round_that_has_lost_some_input_is_replaced_by_one_with_other_parameters_and_the_same_ends(staging: bool) -> None:
    latest = round_document(1, "a")
    asked = request("b", accept_data_loss=(InputName("departures"),))
    home = facts([attempt(1, "a", 1)], latest, staging=staging)
    found = decide(asked, home, {"flights": "/other"}, GRAPH)
    assert found == BeginIncarnation(RoundNumber(2), IncarnationId("one"), OnRewind.REFUSE, {}, latest)
    assert decide(asked, home, PARAMETERS, GRAPH) == Continue(latest), "with its own parameters it goes on where it is"


def test_a_round_that_is_replaced_goes_on_from_its_newest_checkpoint() -> None:
    latest = round_document(2, "a")
    home = facts([attempt(1, "a", 2)], latest, manifest(3, 1))
    found = decide(request("b", accept_data_loss=(InputName("departures"),)), home, {"flights": "/other"}, GRAPH)
    assert found == Begin(RoundNumber(3), CheckpointId(3), interrupted=latest)


@pytest.mark.parametrize(("option", "field"), [("--new-source", "new_sources"), ("--accept-data-loss", "accept_data_loss")])
def test_every_remedy_in_the_refusal_of_other_parameters_works(option: str, field: str) -> None:
    options: Any = {field: (InputName("departures"),)}
    home = facts([attempt(1, "a", 1)], round_document(1, "a", graph=READING))
    with pytest.raises(RejectedError) as refused:
        decide(request("b"), home, {"flights": "/other"}, READING)
    assert f"{option} departures" in refused.value.remedy
    assert not isinstance(decide(request("b", **options), home, {"flights": "/other"}, READING), Answer)
    assert "--fresh" in refused.value.remedy
    assert isinstance(decide(request("b", fresh=True), home, {"flights": "/other"}, READING), BeginIncarnation)
    assert decide(request("b"), home, refused.value.evidence["expected"], READING) == Continue(
        cast(RoundDocument, home.latest_round)
    )


@pytest.mark.parametrize(("name", "value"), [("on_end", OnEnd.DRAIN), ("publish", Publish.EXTERNAL)])
def test_an_interrupted_round_cannot_continue_with_another_ending_or_policy(name: str, value: str) -> None:
    home = facts([attempt(1, "a", 1)], round_document(1, "a"))
    with pytest.raises(RejectedError, match=f"cannot go on with {name}={value}"):
        decide(request("b", **{name: cast(Any, value)}), home, PARAMETERS, GRAPH)


def test_an_interrupted_round_continues_if_its_own_ending_is_given_again() -> None:
    latest = round_document(1, "a")
    found = decide(request("b", on_end=OnEnd.SUSPEND), facts([attempt(1, "a", 1)], latest), PARAMETERS, GRAPH)
    assert found == Continue(latest)


def test_a_new_run_after_a_suspended_round_begins_the_next() -> None:
    home = facts([attempt(1, "a", 1)], round_document(1, "a"), manifest(7, 1))
    assert decide(request("b"), home, {"flights": "/other"}, GRAPH) == Begin(RoundNumber(2), CheckpointId(7))


def test_a_repeated_run_always_gets_the_answer_of_its_own_round() -> None:
    first, second = manifest(1, 1), manifest(2, 2)
    home = facts([attempt(1, "a", 1), attempt(2, "b", 2)], round_document(2, "b"), first, second)
    assert decide(request("a"), home, {"flights": "/other"}, {}) == Answer(first)


def test_a_drained_pipeline_has_nothing_left_to_do() -> None:
    final = manifest(1, 1, drained=True)
    home = facts([attempt(1, "a", 1)], round_document(1, "a", on_end=OnEnd.DRAIN), final)
    assert decide(request("b"), home, PARAMETERS, GRAPH) == Answer(final)
    assert decide(request("b"), home, PARAMETERS | {"newer": 1}, GRAPH) == Answer(final)


def with_sinks(**sinks: dict[str, Any] | None) -> dict[str, Any]:
    return {"stages": {name: {"inputs": {}, "sink": sink} for name, sink in sinks.items()}}


HOURLY = {"name": "hourly", "path": "/w/hourly", "mode": "append"}


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        (with_sinks(hourly=HOURLY | {"path": "/w/other"}), r"stage hourly has path '/w/other' \(before '/w/hourly'\)\."),
        (with_sinks(hourly=HOURLY | {"mode": "complete"}), r"stage hourly has mode 'complete' \(before 'append'\)\."),
        (with_sinks(hourly=None), r"stage hourly has no table any more\."),
        (with_sinks(hourly=HOURLY, daily=HOURLY | {"name": "daily"}), r"stage daily has a table now\."),
    ],
)
def test_a_drained_pipeline_with_other_tables_is_refused(changed: dict[str, Any], told: str) -> None:
    final = manifest(1, 1, drained=True).model_copy(update={"graph": with_sinks(hourly=HOURLY)})
    home = facts([attempt(1, "a", 1)], round_document(1, "a", graph=final.graph), final)
    assert decide(request("b"), home, PARAMETERS, with_sinks(hourly=HOURLY)) == Answer(final)
    with pytest.raises(RejectedError, match=told):
        decide(request("b"), home, PARAMETERS, changed)


def test_a_drained_pipeline_with_other_parameters_is_refused() -> None:
    final = manifest(1, 1, drained=True)
    home = facts([attempt(1, "a", 1)], round_document(1, "a", on_end=OnEnd.DRAIN), final)
    with pytest.raises(RejectedError, match=r"is finished: run r has drained it with other parameters \(flights\)") as caught:
        decide(request("b"), home, {"flights": "/other"}, GRAPH)
    assert (caught.value.evidence["expected"], caught.value.evidence["found"]) == (PARAMETERS, {"flights": "/other"})
    assert decide(request("a"), home, {"flights": "/other"}, GRAPH) == Answer(final), "its own run is answered as before"


MORE: dict[str, Any] = {"stages": GRAPH["stages"] | {"daily": {"inputs": {"hourly": "hourly"}}}}
"""A graph with one more stage."""
ENDLESS: dict[str, Any] = GRAPH | {"sources": {"departures": {"bounded": False}}}


def with_graph(found: Manifest, graph: dict[str, Any], **changes: Any) -> Manifest:
    return found.model_copy(update={"graph": graph, **changes})


class TestAChangedPipeline:
    """The stages differ from those of the newest checkpoint."""

    def test_begins_with_a_savepoint_of_the_checkpoint_that_ended_a_round(self) -> None:
        home = facts([attempt(1, "a", 1)], round_document(1, "a"), manifest(7, 1))
        found = decide(request("b"), home, PARAMETERS, MORE)
        assert isinstance(found, BeginFromSavepoint)
        assert (found.round, found.follows, found.checkpoint) == (2, "one", 7)
        assert goes_on_from(found, home) == continued(found, home) == home.head
        assert [str(each) for each in stage_fates(found, home, MORE)] == ["hourly continues", "daily starts empty"]

    def test_drops_state_only_if_the_start_allows_it(self) -> None:
        final = with_graph(manifest(7, 1), MORE)
        home = facts([attempt(1, "a", 1)], round_document(1, "a", graph=MORE), final)
        with pytest.raises(
            RejectedError, match="Checkpoint 7 has state of stages that the pipeline no longer has: daily"
        ) as caught:
            decide(request("b"), home, PARAMETERS, GRAPH)
        assert "--allow-dropped" in caught.value.remedy
        assert isinstance(decide(request("b", allow_dropped=True), home, PARAMETERS, GRAPH), BeginFromSavepoint)

    def test_is_refused_by_name_if_state_does_not_fit(self) -> None:
        home = facts([attempt(1, "a", 1)], round_document(1, "a"), manifest(7, 1))
        other = {"stages": {"hourly": {"inputs": {"arrivals": "arrivals"}}}}
        with pytest.raises(RejectedError, match="checkpoint 7: hourly cannot go on: it read departures and reads arrivals"):
            decide(request("b", allow_dropped=True), home, PARAMETERS, other)

    def test_goes_on_after_a_stop_in_the_middle_of_a_round(self) -> None:
        stop = with_graph(manifest(7, 1), GRAPH, checkpoint_kind=CheckpointKind.STOP)
        home = facts([attempt(1, "a", 1)], round_document(1, "a"), stop)
        found = decide(request("b"), home, PARAMETERS | {"newer": 1}, MORE)
        assert isinstance(found, BeginFromSavepoint)
        assert found.checkpoint == 7
        with pytest.raises(RejectedError, match="other parameters"):
            decide(request("b"), home, {"flights": "/other"}, MORE)
        with pytest.raises(RejectedError, match="cannot go on with on_end=drain"):
            decide(request("b", on_end=OnEnd.DRAIN), home, PARAMETERS, MORE)

    @pytest.mark.parametrize("graph", [GRAPH, ENDLESS])
    @pytest.mark.parametrize("found", [[], [manifest(7, 1).model_copy(update={"checkpoint_kind": CheckpointKind.PERIODIC})]])
    def test_is_refused_in_the_middle_of_an_interrupted_round(self, graph: dict[str, Any], found: list[Manifest]) -> None:
        home = facts([attempt(1, "a", 1)], round_document(1, "a", graph=graph), *found)
        with pytest.raises(RejectedError, match=r"stages\.daily differ") as caught:
            decide(request("b"), home, PARAMETERS, graph | MORE)
        assert "stop it (spark-jobs stop) or let it finish the round" in caught.value.remedy

    def test_that_has_begun_and_died_goes_on_with_its_savepoint(self) -> None:
        begun = attempt(2, "b", 2, "two", restore=RestoreFrom(savepoint="file:///checkpoint-7"))
        asked = request("b", 2, restore=begun.restore)
        home = replace(facts([attempt(1, "a", 1), begun], round_document(1, "a"), begun_by=asked), begun_with=manifest(7, 1))
        found = decide(request("c"), home, PARAMETERS, MORE)
        assert found == Begin(RoundNumber(2), None)
        assert continued(found, home) is None, "the savepoint may be of another home, with other tables"
        assert [str(each) for each in stage_fates(found, home, MORE)] == ["hourly continues", "daily starts empty"]
        with pytest.raises(RejectedError, match="the savepoint: hourly cannot go on"):
            decide(request("c"), home, PARAMETERS, {"stages": {"hourly": {"inputs": {}}}})
        with_new_sources = replace_round(found, home)
        assert isinstance(with_new_sources, BeginFromSavepoint)
        assert with_new_sources.restore == begun.restore
        assert goes_on_from(with_new_sources, home) == home.begun_with
        assert continued(with_new_sources, home) is None

    def test_that_has_planned_no_batch_may_change_again(self) -> None:
        begun = attempt(2, "b", 2, "two", restore=RestoreFrom(savepoint="file:///checkpoint-7"))
        asked = request("b", 2, restore=begun.restore)
        latest = round_document(2, "b", "two", graph=MORE)
        home = facts([attempt(1, "a", 1), begun], latest, begun_by=asked, staging=False)
        home = replace(home, begun_with=manifest(7, 1))
        found = decide(request("c"), home, PARAMETERS, GRAPH)
        assert isinstance(found, BeginFromSavepoint)
        assert (found.restore, found.checkpoint, goes_on_from(found, home)) == (begun.restore, None, home.begun_with)
        with pytest.raises(RejectedError, match="differ") as caught:
            decide(request("c"), replace(home, staging=True), PARAMETERS, GRAPH)
        assert "--restore file:///checkpoint-7" in caught.value.remedy


def test_a_fresh_start_begins_an_incarnation_that_follows_the_newest() -> None:
    home = facts([attempt(1, "a", 1)], round_document(1, "a"))
    assert decide(request("b", fresh=True), home, {}, {}) == BeginIncarnation(
        RoundNumber(2), IncarnationId("one"), OnRewind.REFUSE
    )


def test_a_fresh_start_after_a_publication_is_refused() -> None:
    home = facts([attempt(1, "a", 1)], round_document(1, "a"), manifest(1, 1), published=1)
    with pytest.raises(RejectedError, match="hourly up to checkpoint 1"):
        decide(request("b", fresh=True), home, PARAMETERS, GRAPH)


@pytest.mark.parametrize("on_rewind", [OnRewind.KEEP, OnRewind.REPLACE])
def test_a_fresh_start_after_a_publication_is_accepted_with_on_rewind(on_rewind: OnRewind) -> None:
    home = facts([attempt(1, "a", 1)], round_document(1, "a"), manifest(1, 1), published=1)
    found = decide(request("b", fresh=True, on_rewind=on_rewind), home, PARAMETERS, GRAPH)
    assert found == BeginIncarnation(RoundNumber(2), IncarnationId("one"), on_rewind)


def test_a_fresh_start_that_is_repeated_goes_on_with_its_own_incarnation() -> None:
    latest, begun_by = round_document(2, "b", "two"), request("b", 2, fresh=True)
    home = facts([attempt(1, "a", 1), attempt(2, "b", 2, "two")], latest, manifest(1, 1), begun_by=begun_by)
    assert decide(request("b", fresh=True), home, PARAMETERS, GRAPH) == Continue(latest)


def test_a_fresh_start_that_is_repeated_in_an_empty_home_goes_on_as_well() -> None:
    latest, begun_by = round_document(1, "a"), request("a", 1, fresh=True)
    home = facts([attempt(1, "a", 1)], latest, begun_by=begun_by)
    assert decide(request("a", fresh=True), home, PARAMETERS, GRAPH) == Continue(latest)


def test_a_run_may_start_fresh_when_it_is_repeated() -> None:
    home = facts([attempt(1, "a", 1)], round_document(1, "a"), begun_by=request("a", 1))
    found = decide(request("a", fresh=True), home, PARAMETERS, GRAPH)
    assert found == BeginIncarnation(RoundNumber(2), IncarnationId("one"), OnRewind.REFUSE)


def test_a_fresh_start_that_is_repeated_with_other_options_begins_another_incarnation() -> None:
    named = [attempt(1, "a", 1), attempt(2, "b", 2, "two")]
    home = facts(named, round_document(1, "a"), manifest(1, 1), published=1, begun_by=request("b", 2, fresh=True))
    found = decide(request("b", fresh=True, on_rewind=OnRewind.KEEP), home, PARAMETERS, GRAPH)
    assert found == BeginIncarnation(RoundNumber(3), IncarnationId("two"), OnRewind.KEEP)


@pytest.mark.parametrize("fresh", [False, True])
def test_a_named_incarnation_that_has_not_begun_is_begun_by_the_next_start(fresh: bool) -> None:
    named = attempt(2, "b", 2, "two", on_rewind=OnRewind.KEEP)
    begun_by = request("b", 2, fresh=True, on_rewind=OnRewind.KEEP)
    home = facts([attempt(1, "a", 1), named], round_document(1, "a"), manifest(1, 1), published=1, begun_by=begun_by)
    asked = request("b", fresh=True, on_rewind=OnRewind.KEEP) if fresh else request("c")
    assert decide(asked, home, PARAMETERS, GRAPH) == Begin(RoundNumber(2), None)


OLD = {InputName("departures"): "file:///old"}
OTHER = {InputName("departures"): "file:///other"}
ADOPTED = {
    InputName("departures"): AdoptedOffsets(checkpoint="file:///old", query="q", batch=BatchId(7), offset='{"logOffset": 7}')
}


def test_an_empty_home_and_a_fresh_start_adopt_offsets() -> None:
    first = decide(request("a", adopt_offsets=OLD), facts([], None), PARAMETERS, GRAPH)
    assert first == BeginIncarnation(RoundNumber(1), None, OnRewind.REFUSE, OLD)
    home = facts([attempt(1, "a", 1)], round_document(1, "a"), manifest(1, 1))
    fresh = decide(request("b", fresh=True, adopt_offsets=OLD), home, PARAMETERS, GRAPH)
    assert fresh == BeginIncarnation(RoundNumber(2), IncarnationId("one"), OnRewind.REFUSE, OLD)


@pytest.mark.parametrize("again", [OLD, {}], ids=["the same offsets", "no offsets"])
@pytest.mark.parametrize("staging", [True, False])
def test_an_interrupted_round_that_adopted_goes_on_as_it_was_begun(again: dict[InputName, str], staging: bool) -> None:
    latest = round_document(1, "a", adopted=ADOPTED)
    home = facts([attempt(1, "a", 1)], latest, staging=staging)
    assert decide(request("b", adopt_offsets=again), home, PARAMETERS, GRAPH) == Continue(latest)


def test_an_interrupted_round_without_a_planned_batch_is_replaced_by_one_that_adopts_other_offsets() -> None:
    home = facts([attempt(1, "a", 1)], round_document(1, "a", adopted=ADOPTED), staging=False)
    found = decide(request("a", adopt_offsets=OTHER), home, PARAMETERS, GRAPH)
    assert found == BeginIncarnation(RoundNumber(2), IncarnationId("one"), OnRewind.REFUSE, OTHER)


def test_a_first_round_that_is_replaced_because_of_a_new_source_adopts_the_offsets_again() -> None:
    latest = round_document(1, "a", adopted=ADOPTED)
    found = replace_round(Continue(latest), facts([attempt(1, "a", 1)], latest))
    assert found == BeginIncarnation(RoundNumber(2), IncarnationId("one"), OnRewind.REFUSE, OLD, latest)


@pytest.mark.parametrize("again", [OLD, {}], ids=["the same offsets", "no offsets"])
def test_a_named_incarnation_that_has_not_begun_adopts_the_offsets_of_its_own_request(again: dict[InputName, str]) -> None:
    home = facts([attempt(1, "a", 1)], None, begun_by=request("a", 1, adopt_offsets=OLD))
    assert decide(request("b", adopt_offsets=again), home, PARAMETERS, GRAPH) == Begin(RoundNumber(1), None, OLD)


def test_a_fresh_start_that_is_repeated_with_other_offsets_begins_another_incarnation() -> None:
    begun_by = request("b", 2, fresh=True, adopt_offsets=OLD)
    home = facts([attempt(1, "a", 1), attempt(2, "b", 2, "two")], round_document(2, "b", "two"), begun_by=begun_by)
    found = decide(request("b", fresh=True, adopt_offsets=OTHER), home, PARAMETERS, GRAPH)
    assert found == BeginIncarnation(RoundNumber(3), IncarnationId("two"), OnRewind.REFUSE, OTHER)


def _begun() -> HomeFacts:
    return facts([attempt(1, "a", 1)], round_document(1, "a"))


def _other_offsets() -> HomeFacts:
    return facts([attempt(1, "a", 1)], round_document(1, "a", adopted=ADOPTED))


def _suspended() -> HomeFacts:
    return facts([attempt(1, "a", 1)], round_document(1, "a", adopted=ADOPTED), manifest(1, 1))


def _drained() -> HomeFacts:
    return facts([attempt(1, "a", 1)], round_document(1, "a", adopted=ADOPTED), manifest(1, 1, drained=True))


def _begun_again() -> HomeFacts:
    second = attempt(2, "b", 2).model_copy(update={"restored_from": CheckpointId(1)})
    return facts([attempt(1, "a", 1), second], round_document(2, "b"), manifest(1, 1), staging=False)


@pytest.mark.parametrize("home", [_begun, _other_offsets, _suspended, _drained, _begun_again])
def test_a_home_that_has_read_rows_adopts_no_offsets(home: Callable[[], HomeFacts]) -> None:
    with pytest.raises(RejectedError, match="only if nothing has been read yet"):
        decide(request("c", adopt_offsets=OTHER), home(), PARAMETERS, GRAPH)


def test_a_run_that_adopted_offsets_gets_its_answer_when_it_is_repeated() -> None:
    home = _suspended()
    found = decide(request("a", adopt_offsets=OLD), home, PARAMETERS, GRAPH)
    assert isinstance(found, Answer)
    assert found.manifest == home.final_of(RunId("a"))


@pytest.mark.parametrize(
    ("minor", "taken_with"), [("4.2", "4.2"), ("4.2", "4.1"), ("4.2", "4.0"), ("4.1", "4.0"), ("4.10", "4.9")]
)
def test_a_newer_spark_continues_with_the_state_of_an_older_one(minor: str, taken_with: str) -> None:
    home = facts([attempt(1, "a", 1)], round_document(1, "a"), manifest(1, 1).model_copy(update={"spark": taken_with}))
    check_spark(Begin(RoundNumber(2), CheckpointId(1)), request("b"), home, minor, can_repartition=True)


@pytest.mark.parametrize(
    "decision",
    [Begin(RoundNumber(2), CheckpointId(1)), Continue(round_document(1, "a"), CheckpointId(1))],
    ids=["begin", "continue"],
)
def test_an_older_spark_is_refused_by_the_names_of_both(decision: Begin | Continue) -> None:
    home = facts([attempt(1, "a", 1)], round_document(1, "a"), manifest(1, 1))
    with pytest.raises(RejectedError, match=r"Checkpoint 1 was taken with Spark 4\.2, but this is Spark 4\.1") as refused:
        check_spark(decision, request("b"), home, "4.1", can_repartition=False)
    assert "Start with Spark 4.2 or newer" in str(refused.value)
    assert "--restore" in str(refused.value)


def test_a_fresh_start_is_allowed_with_an_older_spark() -> None:
    home = facts([attempt(1, "a", 1)], round_document(1, "a"), manifest(1, 1))
    anew = BeginIncarnation(RoundNumber(2), IncarnationId("one"), OnRewind.KEEP)
    check_spark(anew, request("b", state_partitions=8), home, "4.1", can_repartition=False)


@pytest.mark.parametrize("asked", [8, 4, None])
def test_a_spark_that_cannot_repartition_state_refuses_another_number_of_partitions_early(asked: int | None) -> None:
    home = facts([attempt(1, "a", 1, state_partitions=4)], round_document(1, "a"), manifest(1, 1))
    decision, start = Begin(RoundNumber(2), CheckpointId(1)), request("b", state_partitions=asked)
    check_spark(decision, start, home, "4.2", can_repartition=True)
    if asked != 8:
        check_spark(decision, start, home, "4.2", can_repartition=False)
        return
    with pytest.raises(RejectedError, match="cannot change the number of state partitions to 8"):
        check_spark(decision, start, home, "4.2", can_repartition=False)


class TestABackfill:
    """A start that names losses goes on where the home is, and reads no new rows of bounded sources."""

    LOSSES: Any = (LossId("2-1"),)

    def decide(self, found: HomeFacts, parameters: Any = PARAMETERS, graph: Any = GRAPH, **given: Any) -> Any:
        return decide(request("mended", backfill=self.LOSSES, **given), found, parameters, graph)

    @pytest.mark.parametrize("drained", [False, True])
    def test_after_a_round_is_a_round_with_the_same_ends(self, drained: bool) -> None:
        latest = round_document(2, "a")
        found = facts([attempt(1, "a", 2)], latest, manifest(5, 2, drained=drained))
        assert self.decide(found) == Begin(RoundNumber(3), CheckpointId(5), interrupted=latest)

    def test_that_is_repeated_gets_its_answer(self) -> None:
        answered = manifest(6, 3)
        found = facts([attempt(1, "a", 2), attempt(2, "mended", 3)], round_document(3, "mended"), manifest(5, 2), answered)
        assert self.decide(found) == Answer(answered)

    def test_in_a_round_that_has_not_ended_takes_losses_that_the_round_leaves_out(self) -> None:
        own, older = round_document(2, "a"), round_document(3, "a")
        assert self.decide(facts([attempt(1, "a", 2)], own)) == Continue(own, None)
        carried = older.model_copy(update={"losses": self.LOSSES})
        assert self.decide(facts([attempt(1, "a", 3)], carried)) == Continue(carried, None)
        with pytest.raises(RejectedError, match="Loss 2-1 is of an earlier round, and round 3 has not ended"):
            self.decide(facts([attempt(1, "a", 3)], older))

    @pytest.mark.parametrize("drained", [False, True])
    def test_that_has_staged_nothing_is_replaced_by_a_start_without_losses(self, drained: bool) -> None:
        final, asked = manifest(5, 2, drained=drained), round_document(3, "failed")
        attempts = [attempt(1, "a", 2), attempt(2, "failed", 3)]
        home = facts(attempts, asked, final, failed_backfill=True)
        begins = Answer(final) if drained else Begin(RoundNumber(4), CheckpointId(5))
        assert decide(request("b"), home, PARAMETERS, GRAPH) == begins
        assert decide(request("b"), facts(attempts, asked, final), PARAMETERS, GRAPH) == Continue(asked, CheckpointId(5))
        losses = asked.model_copy(update={"losses": self.LOSSES})
        again = facts(attempts, losses, final, failed_backfill=True)
        assert self.decide(again) == Continue(losses, CheckpointId(5)), (
            "the same losses are backfilled in the round that they have"
        )

    def test_that_has_staged_nothing_is_replaced_by_a_backfill_of_another_loss(self) -> None:
        failed, final = round_document(3, "failed").model_copy(update={"losses": (LossId("1-1"),)}), manifest(5, 2)
        home = facts([attempt(1, "a", 2), attempt(2, "failed", 3)], failed, final, failed_backfill=True)
        assert self.decide(home) == Begin(RoundNumber(4), CheckpointId(5), interrupted=failed)

    def test_that_has_staged_nothing_is_replaced_by_a_full_refresh(self) -> None:
        every = frozenset({StageName("hourly")})
        home = facts([attempt(2, "failed", 3)], round_document(3, "failed"), manifest(5, 2), failed_backfill=True)
        found = decide(request("b", full_refresh=("hourly",)), home, PARAMETERS, GRAPH, every)
        assert found == BeginIncarnation(RoundNumber(4), IncarnationId("one"), OnRewind.REPLACE, refreshed=every)

    def test_is_refused_with_other_stages_or_parameters_or_another_beginning(self) -> None:
        found = facts([attempt(1, "a", 2)], round_document(2, "a"), manifest(5, 2))
        with pytest.raises(RejectedError, match="whose code has other stages"):
            self.decide(found, graph={"stages": {}})
        with pytest.raises(RejectedError, match="with other parameters"):
            self.decide(found, {"flights": "/elsewhere"})
        for beginning in ({"fresh": True}, {"full_refresh": ("hourly",)}):
            with pytest.raises(RejectedError, match="does not continue the home's newest checkpoint"):
                self.decide(found, **beginning)


class TestAFullRefresh:
    """Some stages start over, and the others go on."""

    TWO: ClassVar[dict[str, Any]] = GRAPH | {
        "stages": GRAPH["stages"] | {"daily": {"inputs": {"rows": "departures"}, "sink": {"name": "daily"}}}
    }
    DAILY = frozenset({StageName("daily")})
    ASKED: ClassVar[dict[str, Any]] = {"full_refresh": ("daily",)}

    def home(self, final: Manifest, **given: Any) -> HomeFacts:
        newest = attempt(1, "a", 1, **given)
        return facts([newest], round_document(1, "a", graph=self.TWO), with_graph(final, self.TWO))

    def test_begins_with_a_savepoint_as_if_its_stages_were_new(self) -> None:
        home = self.home(manifest(7, 1))
        found = decide(request("b", **self.ASKED), home, PARAMETERS, self.TWO, self.DAILY)
        assert isinstance(found, BeginFromSavepoint)
        assert (found.checkpoint, found.refreshed) == (7, self.DAILY)
        assert [str(each) for each in stage_fates(found, home, self.TWO)] == ["hourly continues", "daily starts empty"]

    def test_a_full_refresh_of_all_stages_begins_an_incarnation_and_replaces_all_rows(self) -> None:
        every = frozenset({StageName("daily"), StageName("hourly")})
        found = decide(request("b", **self.ASKED), self.home(manifest(7, 1)), PARAMETERS, self.TWO, every)
        assert found == BeginIncarnation(RoundNumber(2), IncarnationId("one"), OnRewind.REPLACE, refreshed=every)

    def test_lets_a_stage_change_whose_state_would_not_fit(self) -> None:
        changed = self.TWO | {"stages": self.TWO["stages"] | {"daily": {"inputs": {"rows": "arrivals"}}}}
        with pytest.raises(RejectedError, match="daily cannot go on"):
            decide(request("b"), self.home(manifest(7, 1)), PARAMETERS, changed)
        found = decide(request("b", **self.ASKED), self.home(manifest(7, 1)), PARAMETERS, changed, self.DAILY)
        assert isinstance(found, BeginFromSavepoint)

    def test_begins_after_a_stop_too(self) -> None:
        stop = with_graph(manifest(7, 1), self.TWO, checkpoint_kind=CheckpointKind.STOP)
        found = decide(request("b", **self.ASKED), self.home(stop), PARAMETERS, self.TWO, self.DAILY)
        assert isinstance(found, BeginFromSavepoint)
        assert (found.checkpoint, found.refreshed) == (7, self.DAILY)

    @pytest.mark.parametrize("run", ["a", "b"])
    def test_that_has_begun_goes_on_in_any_run(self, run: str) -> None:
        home = facts([attempt(1, "a", 1, refreshed=("daily",))], round_document(1, "a", graph=self.TWO))
        found = decide(request(run, **self.ASKED), home, PARAMETERS, self.TWO, self.DAILY)
        assert isinstance(found, Continue)
        assert (found.round, found.parent) == (home.latest_round, None)

    def test_that_died_before_its_round_began_goes_on_without_the_stages_of_the_savepoint(self) -> None:
        begun = attempt(2, "b", 2, "two", restore=RestoreFrom(savepoint="file:///checkpoint-7"), refreshed=("daily",))
        asked = request("b", 2, restore=begun.restore, **self.ASKED)
        taken = without_stages(with_graph(manifest(7, 1), self.TWO), begun.refreshed)
        home = replace(facts([attempt(1, "a", 1), begun], round_document(1, "a"), begun_by=asked), begun_with=taken)
        found = decide(request("b", **self.ASKED), home, PARAMETERS, self.TWO, self.DAILY)
        assert found == Begin(RoundNumber(2), None)
        assert [str(each) for each in stage_fates(found, home, self.TWO)] == ["hourly continues", "daily starts empty"]
        again = replace_round(found, home)
        assert isinstance(again, BeginFromSavepoint)
        assert again.refreshed == self.DAILY

    def test_is_carried_out_once_in_a_run_although_it_was_stopped_since(self) -> None:
        stop = with_graph(manifest(7, 2), self.TWO, checkpoint_kind=CheckpointKind.STOP)
        attempts = [attempt(1, "a", 1), attempt(2, "b", 2)]
        home = facts(attempts, round_document(2, "b", graph=self.TWO), stop, begun_by=request("a", 1, **self.ASKED))
        assert isinstance(decide(request("a", **self.ASKED), home, PARAMETERS, self.TWO, self.DAILY), Continue)
        assert isinstance(decide(request("c", **self.ASKED), home, PARAMETERS, self.TWO, self.DAILY), BeginFromSavepoint)

    def test_is_refused_in_the_middle_of_an_interrupted_round(self) -> None:
        home = facts([attempt(1, "a", 1)], round_document(1, "a", graph=self.TWO))
        with pytest.raises(RejectedError, match="begins between two rounds, but round 1 of run a was interrupted") as caught:
            decide(request("b", **self.ASKED), home, PARAMETERS, self.TWO, self.DAILY)
        assert "--full-refresh-all" in caught.value.remedy

    def test_is_refused_after_a_drain(self) -> None:
        with pytest.raises(RejectedError, match="run r has drained the pipeline"):
            decide(request("b", **self.ASKED), self.home(manifest(7, 1, drained=True)), PARAMETERS, self.TWO, self.DAILY)

    def test_of_an_empty_home_is_a_first_run_that_the_same_command_finishes(self) -> None:
        found = decide(request("b", **self.ASKED), facts([], None), PARAMETERS, self.TWO, self.DAILY)
        assert found == BeginIncarnation(RoundNumber(1), None, OnRewind.REFUSE, refreshed=self.DAILY)
        home = facts([attempt(1, "b", 1, refreshed=("daily",))], None, begun_by=request("b", 1, **self.ASKED))
        assert decide(request("c", **self.ASKED), home, PARAMETERS, self.TWO, self.DAILY) == Begin(RoundNumber(1), None)
        again = facts([attempt(1, "b", 1, refreshed=("daily",))], round_document(1, "b", graph=GRAPH), staging=False)
        changed = decide(request("c", **self.ASKED), again, PARAMETERS, self.TWO, self.DAILY)
        assert isinstance(changed, BeginIncarnation)
        assert changed.refreshed == self.DAILY

    @pytest.mark.parametrize("also", [{"fresh": True}, {"restore": RestoreFrom(savepoint="file:///s")}])
    def test_is_refused_together_with_another_beginning(self, also: dict[str, Any]) -> None:
        home = self.home(manifest(7, 1))
        if "restore" in also:
            home = replace(home, savepoint=with_graph(manifest(3, 1), self.TWO))
        with pytest.raises(RejectedError, match="cannot have"):
            decide(request("b", **self.ASKED, **also), home, PARAMETERS, self.TWO, self.DAILY)


def test_a_checkpoint_without_some_stages_has_neither_their_state_nor_their_rows() -> None:
    stages = {name: {"inputs": {}, "sink": {"name": f"{name}_table"}} for name in ("hourly", "daily")}
    whole = with_graph(
        manifest(7, 1), GRAPH | {"stages": stages}, brought={SinkName("hourly_table"): (), SinkName("daily_table"): ()}
    )
    left = without_stages(whole, {StageName("daily")})
    assert (set(left.graph["stages"]), set(left.brought)) == ({"hourly"}, {"hourly_table"})
    assert without_stages(whole, ()) == whole
