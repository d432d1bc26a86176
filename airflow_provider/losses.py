"""What a task does about rows of inputs that its run has left out."""

from collections.abc import Sequence
from enum import StrEnum

from spark_jobs.protocol.documents import StartResponse
from spark_jobs.protocol.errors import RejectedError
from spark_jobs.protocol.losses import Loss, said


class OnLoss(StrEnum):
    """What a run comes to that has left out rows which nobody has accepted as lost."""

    SUCCEED = "succeed"
    """The task succeeds. Its log and its XCom name the losses."""
    FAIL = "fail"
    """The task fails without another try, until the losses are accepted."""


def not_accepted(home: str, answer: StartResponse, losses: Sequence[Loss]) -> RejectedError:
    """Returns the error to raise if nobody has accepted what a run has left out."""
    ids = [loss.id for loss in losses if loss.id is not None]
    named = "; ".join(f"loss {loss.id}, stage '{loss.stage}' of '{loss.input}': {said(loss)}" for loss in losses)
    return RejectedError(
        f"Run {answer.run} has left out rows of its inputs, and nobody has accepted that: {named}.",
        exists=f"Checkpoint {answer.checkpoint} is complete, with all other rows.",
        safe="Nothing was left out that is not in the loss ledger.",
        remedy=f"See spark-jobs losses --home {home}. If the rows may stay out: spark-jobs accept {' '.join(ids)} --home {home} "
        "--reason TEXT, or an AcceptLossOperator. Then clear the task: it succeeds at once.",
        home=home,
        losses=ids,
    )
