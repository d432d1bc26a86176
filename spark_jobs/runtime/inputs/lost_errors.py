"""The errors for rows that sources have lost or skip before stages have read them."""

from collections.abc import Sequence

from spark_jobs.protocol.errors import BEGIN_ANEW, RejectedError
from spark_jobs.protocol.losses import Loss, LostVersions, said

ON_GONE = 'To go on without what is gone by itself, and to count it, declare the source with on_gone="skip".'
_READ_BEFORE = "All rows that the stages have read are staged or public."


def without_it(names: Sequence[str]) -> str:
    """Returns the remedy for missing input of sources."""
    options = " ".join(f"--accept-data-loss {name}" for name in names)
    return f"If it is gone for good, go on without it: {options} (accept_data_loss={list(names)}). Or {BEGIN_ANEW}."


def lost_before_read(losses: Sequence[Loss]) -> RejectedError:
    """Returns the error to raise if sources have lost rows that stages have not read."""
    if changed := [loss for loss in losses if isinstance(loss, LostVersions) and loss.skipped]:
        return _changes_rows(changed)
    names = sorted({loss.input for loss in losses})
    return RejectedError(
        f"Source '{losses[0].input}' has lost rows that stage '{losses[0].stage}' has not read: {_said_all(losses)}.",
        exists=_READ_BEFORE,
        safe="Nothing was read further.",
        remedy=f"Restore them, then run again. {without_it(names)}",
        sources=names,
    )


def _changes_rows(losses: Sequence[LostVersions]) -> RejectedError:
    names = sorted({loss.input for loss in losses})
    anew, without = (" ".join(f"--{option} {name}" for name in names) for option in ("new-source", "accept-data-loss"))
    deletes = "Or, to keep the deleted rows, give the source the option ignoreDeletes=true. "
    return RejectedError(
        f"Source '{losses[0].input}' changes rows, and stage '{losses[0].stage}' reads only rows that are added: {_said_all(losses)}.",
        exists=_READ_BEFORE,
        safe="Nothing was read further.",
        remedy=f"Read the table again from its beginning: {anew} (new_sources={names}); to follow its changes from there, let the source "
        f"read its change feed (readChangeFeed=true). {deletes if _only_deletes(losses) else ''}Or leave these versions out, with the new "
        f"rows in them, and record them: {without} (accept_data_loss={names}).",
        sources=names,
    )


def _only_deletes(losses: Sequence[LostVersions]) -> bool:
    return not any(skipped.added_files for loss in losses for skipped in loss.skipped)


def _said_all(losses: Sequence[Loss]) -> str:
    first, *others = losses
    return "; ".join([said(first), *(f"stage '{loss.stage}' of source '{loss.input}': {said(loss)}" for loss in others)])
