"""Decides whether a task fails because its run has left out rows of its sources."""

from collections.abc import Sequence
from enum import StrEnum

from spark_jobs.protocol.documents import StartResponse
from spark_jobs.protocol.errors import RejectedError
from spark_jobs.protocol.losses import Loss, said


class OnLoss(StrEnum):
    """The result of a task whose run has left out rows and whose losses are not accepted."""

    SUCCEED = "succeed"
    """The task succeeds. Its log and its XCom name the losses."""
    FAIL = "fail"
    """The task fails without a retry until the losses are accepted."""


def not_accepted(home: str, answer: StartResponse, losses: Sequence[Loss]) -> RejectedError:
    """Returns the error for losses that are not accepted."""
    ids = [loss.id for loss in losses if loss.id is not None]
    named = "; ".join(f"loss {loss.id}, stage '{loss.stage}' of source '{loss.input}': {said(loss)}" for loss in losses)
    return RejectedError(
        f"Run {answer.run} has left out rows of its sources, and these losses are not accepted: {named}.",
        exists=f"Checkpoint {answer.checkpoint} is complete, with all other rows.",
        safe="The loss ledger lists everything that was left out.",
        remedy=f"See spark-jobs losses --home {home}. If the rows may stay out: spark-jobs accept {' '.join(ids)} --home {home} "
        "--reason TEXT, or an AcceptLossOperator. Then clear the task: it succeeds at once.",
        home=home,
        losses=ids,
    )
