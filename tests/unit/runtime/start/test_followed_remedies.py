"""The remedy of a refused start works: the start that follows it is accepted."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from spark_jobs.protocol.documents import CheckpointKind, OnEnd, OnRewind, Publish, RestoreFrom
from spark_jobs.protocol.errors import BEGIN_ANEW, RejectedError
from spark_jobs.protocol.ids import InputName, LossId, RequestId, StageName
from spark_jobs.protocol.start_requests import StartRequest
from spark_jobs.runtime.start.decision import HomeFacts, decide
from tests.support.start_decisions import GRAPH, PARAMETERS, READING, attempt, facts, manifest, request, round_document

OTHERS = {"flights": "/other"}
SOURCES = (InputName("departures"),)
SAVEPOINT = RestoreFrom(savepoint="file:///stop-1")
OPTIONS: Mapping[str, Callable[[StartRequest], dict[str, Any]]] = {
    "--on-rewind keep": lambda asked: {"fresh": True, "on_rewind": OnRewind.KEEP},
    "--on-rewind replace": lambda asked: {"fresh": True, "on_rewind": OnRewind.REPLACE},
    "--accept-data-loss departures": lambda asked: {"accept_data_loss": SOURCES},
    "--new-source departures": lambda asked: {"new_sources": SOURCES},
    "--new-source shops": lambda asked: {"new_sources": (InputName("shops"),)},
    "--allow-dropped": lambda asked: {"allow_dropped": True},
    "--allow-drained": lambda asked: {"restore": SAVEPOINT.model_copy(update={"allow_drained": True})},
    "Leave --adopt-offsets out": lambda asked: {"adopt_offsets": {}},
    "without on_end": lambda asked: {"on_end": None},
    "without publish": lambda asked: {"publish": None},
    "Leave it out": lambda asked: {"fresh": False, "on_rewind": OnRewind.REFUSE, "adopt_offsets": {}, "full_refresh": ()},
    "Leave one of them out": lambda asked: {"full_refresh": ()},
    "--full-refresh-all": lambda asked: {"full_refresh": (), "fresh": True, "on_rewind": OnRewind.REPLACE},
    "same command without --full-refresh": lambda asked: {"full_refresh": ()},
    "without it first": lambda asked: {"backfill": ()},
    "Or leave out the losses": lambda asked: {"backfill": ()},
    "Leave out fresh, full_refresh, restore": lambda asked: {"fresh": False, "on_rewind": OnRewind.REFUSE, "full_refresh": ()},
}
"""The changed fields of the request, by the words of the remedy."""
ANEW = [
    {"fresh": True, "on_rewind": how, "restore": None, "full_refresh": (), "backfill": ()}
    for how in (OnRewind.KEEP, OnRewind.REPLACE)
]
"""The changed fields of the request for :data:`BEGIN_ANEW`. The command that backfills does not start over: ``run`` does."""


@dataclass(frozen=True)
class Refused:
    """A start that is refused."""

    home: HomeFacts
    asked: StartRequest
    parameters: Mapping[str, Any] = field(default_factory=lambda: PARAMETERS)
    graph: Mapping[str, Any] = field(default_factory=lambda: GRAPH)
    renamed: Mapping[str, Any] | None = None
    """The graph with the renamed stage, if the remedy requires a new name."""
    refreshed: frozenset[StageName] = frozenset()
    """The stages that the request's full refresh starts over."""
    ways: int = 1
    """The number of alternatives in the remedy, except those that start over or give earlier parameters."""


def drained_stop() -> HomeFacts:
    stop = manifest(1, 1, drained=True).model_copy(
        update={"checkpoint_kind": CheckpointKind.STOP, "request": RequestId("stop-1")}
    )
    return facts([attempt(1, "a", 1)], round_document(1, "a"), stop)


def interrupted() -> HomeFacts:
    return facts([attempt(1, "a", 1)], round_document(1, "a"))


def suspended() -> HomeFacts:
    return facts([attempt(1, "a", 1)], round_document(1, "a"), manifest(1, 1), published=1)


def with_savepoint(**changes: Any) -> HomeFacts:
    return replace(interrupted(), savepoint=manifest(1, 1).model_copy(update=changes))


HOURLY, LOSSES = frozenset({StageName("hourly")}), (LossId("1-1"),)
JOINING = READING | {"statics": {"shops": {}}}
WEEKLY = {"stages": {"weekly": {"inputs": {"departures": "departures"}}, **GRAPH["stages"]}}
CASES = {
    "other parameters in an interrupted round": lambda: Refused(
        facts([attempt(1, "a", 1)], round_document(1, "a", graph=JOINING)), request("b"), OTHERS, JOINING, ways=3
    ),
    "another end of an interrupted round": lambda: Refused(interrupted(), request("b", on_end=OnEnd.DRAIN)),
    "another policy of an interrupted round": lambda: Refused(interrupted(), request("b", publish=Publish.EXTERNAL)),
    "other code in an interrupted round": lambda: Refused(interrupted(), request("b"), graph=WEEKLY, ways=0),
    "a stage less": lambda: Refused(replace(suspended(), head=manifest(1, 1).model_copy(update={"graph": WEEKLY})), request("b")),
    "the only stage, whose state does not fit": lambda: Refused(
        suspended(), request("b"), graph={"stages": {"hourly": {"inputs": {}}}}, ways=0
    ),
    "a stage whose state does not fit, beside another": lambda: Refused(
        replace(suspended(), head=manifest(1, 1).model_copy(update={"graph": WEEKLY})),
        request("b"),
        graph={"stages": {**WEEKLY["stages"], "hourly": {"inputs": {}}}},
        renamed={"stages": {"weekly": WEEKLY["stages"]["weekly"], "by_hour": {"inputs": {}}}},
    ),
    "a pipeline that was stopped with a drain": lambda: Refused(drained_stop(), request("b")),
    "a pipeline that is finished": lambda: Refused(
        facts([attempt(1, "a", 1)], round_document(1, "a"), manifest(1, 1, drained=True)), request("b"), OTHERS, ways=0
    ),
    "a fresh start behind public rows": lambda: Refused(suspended(), request("b", fresh=True), ways=2),
    "offsets that come too late": lambda: Refused(
        suspended(), request("b", adopt_offsets={InputName("departures"): "file:///old"})
    ),
    "a savepoint after a drain": lambda: Refused(
        with_savepoint(drained=True, request=RequestId("stop-1")), request("b", restore=SAVEPOINT)
    ),
    "a fresh start with a savepoint": lambda: Refused(with_savepoint(), request("b", restore=SAVEPOINT, fresh=True)),
    "a full refresh with a savepoint": lambda: Refused(
        with_savepoint(), request("b", restore=SAVEPOINT, full_refresh=("hourly",)), refreshed=HOURLY
    ),
    "a savepoint of other code": lambda: Refused(
        with_savepoint(), request("b", restore=SAVEPOINT), graph={"stages": {"hourly": {"inputs": {}}}}, ways=0
    ),
    "a savepoint with a stage more": lambda: Refused(with_savepoint(graph=WEEKLY), request("b", restore=SAVEPOINT)),
    "a fresh start with a full refresh": lambda: Refused(
        suspended(), request("b", fresh=True, on_rewind=OnRewind.KEEP, full_refresh=("hourly",)), refreshed=HOURLY
    ),
    "a full refresh after a drain": lambda: Refused(
        facts([attempt(1, "a", 1)], round_document(1, "a"), manifest(1, 1, drained=True)),
        request("b", full_refresh=("hourly",)),
        refreshed=HOURLY,
    ),
    "a full refresh in an interrupted round": lambda: Refused(
        interrupted(), request("b", full_refresh=("hourly",)), refreshed=HOURLY, ways=2
    ),
    "a full refresh beside a stage whose state does not fit": lambda: Refused(
        replace(suspended(), head=manifest(1, 1).model_copy(update={"graph": WEEKLY})),
        request("b", full_refresh=("weekly",)),
        graph={"stages": {**WEEKLY["stages"], "hourly": {"inputs": {}}}},
        refreshed=frozenset({StageName("weekly")}),
        ways=0,
    ),
    "other tables of a pipeline that is finished": lambda: Refused(
        facts([attempt(1, "a", 1)], round_document(1, "a"), manifest(1, 1, drained=True)),
        request("b"),
        graph={"stages": {"hourly": GRAPH["stages"]["hourly"] | {"sink": {"name": "hourly", "path": "/another"}}}},
        ways=0,
    ),
    "a backfill beside a fresh start": lambda: Refused(
        suspended(), request("b", backfill=LOSSES, fresh=True, on_rewind=OnRewind.KEEP), ways=2
    ),
    "a backfill with other code": lambda: Refused(suspended(), request("b", backfill=LOSSES), graph=WEEKLY),
    "a backfill of an earlier round in an interrupted one": lambda: Refused(
        facts([attempt(1, "a", 1), attempt(2, "a", 2)], round_document(2, "a"), manifest(1, 1)), request("b", backfill=LOSSES)
    ),
    "a backfill with other parameters": lambda: Refused(
        facts([attempt(1, "a", 1)], round_document(1, "a", graph=READING)), request("b", backfill=LOSSES), OTHERS, READING, ways=0
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_each_remedy_of_a_refused_start_leads_to_an_accepted_start(name: str) -> None:
    case: Refused = CASES[name]()
    with pytest.raises(RejectedError) as caught:
        decide(case.asked, case.home, case.parameters, case.graph, case.refreshed)
    others, followed = caught.value.remedy.replace(BEGIN_ANEW, ""), 0
    for words, changes in OPTIONS.items():
        if words in others:
            asked = case.asked.model_copy(update=changes(case.asked))
            home = case.home
            if asked.restore and home.savepoint is None:
                home = replace(home, savepoint=home.head)
            graph = case.renamed if case.renamed and asked.allow_dropped else case.graph
            decide(asked, home, case.parameters, graph, case.refreshed if asked.full_refresh else frozenset())
            followed += 1
    assert followed == case.ways, others
    if BEGIN_ANEW in caught.value.remedy:
        for changed in ANEW:
            asked = case.asked.model_copy(update=changed)
            decide(asked, replace(case.home, savepoint=None), case.parameters, case.graph)
    if "with its parameters" in others:
        decide(case.asked, case.home, caught.value.evidence["expected"], case.graph)
