"""The tolerance of a stage for rows that it cannot process."""

import re
from dataclasses import dataclass

from spark_jobs.api.checkpoints import Refusing
from spark_jobs.api.refusals import Place
from spark_jobs.api.sink import Sink
from spark_jobs.protocol.documents import SinkMode
from spark_jobs.protocol.options import interval_ms, whole_number

_BUDGET = re.compile(r"([0-9]{1,18})\s+per\s+(\S.*)")
_EXAMPLE = 'Write rows="1000 per hour".'


@dataclass(frozen=True, kw_only=True)
class Tolerate:
    """Lets a stage continue without rows that fail its batch each time. The loss ledger records them.

    It applies only to failures that no retry heals, such as a value that the stage's function cannot process.

    Args:
        rows: Maximum number of rows in a time, such as ``"1000 per hour"``. One more fails the stage.
        after: Number of failures of a batch before the stage passes something over.
    """

    rows: str
    after: int = 3


@dataclass(frozen=True)
class Tolerance:
    """A valid :class:`Tolerate`."""

    after: int
    rows: int
    interval_ms: int


def declare_tolerance(place: Place, tolerate: Tolerate | None, sink: Sink | None) -> Tolerance | None:
    """Returns the tolerance of a stage. Does not check its inputs; see :meth:`spark_jobs.Pipeline.stage`."""
    if tolerate is None:
        return None
    if not isinstance(tolerate, Tolerate):
        raise place.refused(f"tolerate={tolerate!r} is no tolerance.", 'Write tolerate=Tolerate(rows="1000 per hour").')
    if sink is not None and sink.mode is SinkMode.COMPLETE:
        raise place.refused(
            'tolerate= does not go with a sink with mode="complete": the whole result would be wrong for ever after.',
            "Remove tolerate=, or use another mode.",
        )
    refused = Refusing(place, "tolerate")
    found = _BUDGET.fullmatch(str(tolerate.rows).strip().lower())
    if found is None or int(found[1]) < 1:
        raise refused(f"rows={tolerate.rows!r} is no number of rows in a time.", _EXAMPLE, rows=str(tolerate.rows))
    every = found[2] if found[2][0].isdigit() else f"1 {found[2]}"
    return Tolerance(
        after=whole_number(refused, "after", tolerate.after, least=1),
        rows=int(found[1]),
        interval_ms=interval_ms(refused, "rows", every, least_ms=1),
    )
