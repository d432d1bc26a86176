"""The output of ``spark-jobs run --dry-run``."""

from typing import Any

import pytest
from rich.console import Console

from spark_jobs.cli.answers import Outlook, PlanAnswer, StageOutlook
from spark_jobs.cli.dry_run import plan_text
from spark_jobs.protocol.ids import PipelineName, RoundNumber, RunId, StageName


def told(**stage: Any) -> str:
    """Returns the text for a plan of one stage."""
    outlook = Outlook(
        decision="begin",
        explanation="",
        round=RoundNumber(2),
        checkpoint=None,
        stages=(StageOutlook(stage=StageName("refunds"), **stage),),
    )
    console = Console(width=200)
    with console.capture() as shown:
        console.print(*plan_text(PlanAnswer(pipeline=PipelineName("shop"), home="h", run=RunId("r"), outlook=outlook)))
    return " ".join(shown.get().split())


@pytest.mark.parametrize(
    ("reads", "says"),
    [
        ({"sources": ("events",)}, "starts empty, at the beginning of events"),
        ({"stages": ("orders",)}, "starts empty, with what orders will stage"),
        ({"sources": ("events",), "stages": ("orders",)}, "at the beginning of events and with what orders will stage"),
    ],
)
def test_a_new_stage_shows_where_it_begins_in_its_inputs(reads: dict[str, Any], says: str) -> None:
    assert says in told(fate="starts empty", begin="earliest", **reads)


def test_a_stage_of_a_first_run_shows_no_starting_point() -> None:
    assert "starts empty This" in told(fate="starts empty")


def test_a_stage_that_continues_shows_the_size_of_its_state() -> None:
    assert "continues with 12.3 kB of state" in told(fate="continues", state_bytes=12_300)
