"""Describes the effect of a start in words, for ``validate`` and ``run --dry-run``."""

from rich.console import RenderableType
from rich.text import Text

from spark_jobs.api.continuation import Fate
from spark_jobs.cli import words
from spark_jobs.cli.answers import Outlook
from spark_jobs.protocol.documents import OnRewind
from spark_jobs.protocol.ids import RoundNumber
from spark_jobs.protocol.spark_versions import installed_minor
from spark_jobs.protocol.start_requests import StartRequest
from spark_jobs.runtime.start.decision import (
    Answer,
    Begin,
    BeginFromSavepoint,
    BeginIncarnation,
    Continue,
    Decision,
    HomeFacts,
)
from spark_jobs.runtime.start.work_directory import boot_id, why_rebuilt
from spark_jobs.storage.files import Files

FATE_COLOURS = {Fate.CONTINUES.value: "green", Fate.STARTS_EMPTY.value: "cyan", Fate.DROPPED.value: "yellow"}


def outlook(decision: Decision) -> Outlook:
    """Returns a decision in words."""
    match decision:
        case Answer(manifest):
            k = manifest.checkpoint
            why = "The pipeline is drained" if manifest.drained else f"Run {manifest.run} has its answer"
            what = f"{why}: a start would answer with checkpoint {k}, publish its open rows, and run nothing."
            return Outlook(decision="answer", explanation=what, round=manifest.round, checkpoint=k)
        case Continue(round, parent):
            begun = f"which run {round.run} began at {words.moment(round.begun_at)} and which was interrupted"
            what = f"A start would go on with round {round.round}, {begun}."
            return Outlook(decision="continue", explanation=what, round=round.round, checkpoint=parent)
        case Begin(number, parent, _, interrupted):
            after = f"after checkpoint {parent}, with its state" if parent else "from the beginning"
            reads = _instead_of(interrupted.round) if interrupted else "read what has arrived until then"
            what = f"A start would begin round {number} {after}, and {reads}."
            return Outlook(decision="begin", explanation=what, round=number, checkpoint=parent)
        case BeginIncarnation(number, follows, on_rewind):
            public = {OnRewind.KEEP: ", and keep the rows that are public", OnRewind.REPLACE: ", and replace them"}.get(
                on_rewind, ""
            )
            if isinstance(decision, BeginFromSavepoint) and decision.checkpoint is not None:
                of = decision.checkpoint
                names = ", ".join(sorted(decision.refreshed))
                why = f"from which {names} start over" if names else "because the code has changed"
                anew = f"take a savepoint of checkpoint {of}, {why}, and begin round {number} with it"
            elif isinstance(decision, BeginFromSavepoint):
                anew = f"begin round {number} with the savepoint{public}"
            else:
                anew = f"start over with round {number}{public}" if follows else "begin here for the first time"
                anew += f", and {_instead_of(decision.interrupted.round)}" if decision.interrupted else ""
            checkpoint = decision.checkpoint if isinstance(decision, BeginFromSavepoint) else None
            return Outlook(
                decision="begin_incarnation", explanation=f"A start would {anew}.", round=number, checkpoint=checkpoint
            )


def _instead_of(interrupted: RoundNumber) -> str:
    return f"read to the ends of round {interrupted} instead of it"


def with_work_directory(found: Outlook, files: Files, request: StartRequest, facts: HomeFacts) -> Outlook:
    """Returns the outlook together with the place where a start on this host would go on, also in words."""
    why = why_rebuilt(files, request, facts, boot_id(), installed_minor())
    if why is None:
        where = "It would go on in place: nothing that is staged would be computed again."
    else:
        where = f"Its work directory would not be continued: {why}. {_rebuilt(found, facts)}"
    return found.model_copy(
        update={"explanation": f"{found.explanation} {where}", "in_place": why is None, "why_not_in_place": why}
    )


def _rebuilt(found: Outlook, facts: HomeFacts) -> str:
    """Returns a description of the source of a new work directory."""
    if found.checkpoint is not None:
        return f"A new one would be built from checkpoint {found.checkpoint}, and what came after it read again."
    if facts.begun_by is not None and facts.begun_by.restore is not None:
        return "A new one would be built from the savepoint that it was begun with, and what came after it read again."
    return "There is no checkpoint yet: a new one would begin empty, and everything would be read again."


def fates_table(found: Outlook) -> RenderableType:
    """Returns a table of the fate of each stage."""
    shown = words.table("", "stage", "would be")
    for each in found.stages:
        shown.add_row(Text(each.stage), Text(each.fate, style=FATE_COLOURS[each.fate]))
    return shown
