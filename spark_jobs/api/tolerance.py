"""How much a stage may pass over of what it cannot process."""

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
    """Lets a stage go on without rows with which its batch fails each time. They are in the loss ledger.

    Only failures are tolerated that no other try heals, such as a value that the stage's function cannot process.

    Args:
        rows: How many rows may be passed over in which time, such as ``"1000 per hour"``. A failure beyond that ends the stage.
        after: How often a batch has to fail before something of it is passed over.
    """

    rows: str
    after: int = 3


@dataclass(frozen=True)
class Tolerance:
    """A :class:`Tolerate` that was checked."""

    after: int
    rows: int
    interval_ms: int


def declare_tolerance(place: Place, tolerate: Tolerate | None, sink: Sink | None) -> Tolerance | None:
    """A stage's tolerance, checked as far as it can be without its inputs; see :meth:`spark_jobs.Pipeline.stage`."""
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
