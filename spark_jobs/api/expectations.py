"""Expectations: conditions that each row of a stage's result must fulfil, and what happens to a row that violates one."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from spark_jobs.api.names import check_name
from spark_jobs.api.refusals import Mistakes, Place
from spark_jobs.api.sink import DeltaSink, Sink, declare_sink
from spark_jobs.protocol.documents import SinkMode
from spark_jobs.protocol.options import choice

VIOLATED = "violated_expectations"
"""The column with the names of the expectations that a row violates; null if it violates none."""
VIOLATED_IN_BATCH = "violated_in_batch"
"""The column with the number of the stage's batch."""
VIOLATED_AT = "violated_at"
"""The column with the time of that batch."""
VIOLATION_COLUMNS = (VIOLATED, VIOLATED_IN_BATCH, VIOLATED_AT)
"""The columns that a table of violations has in addition to those of its stage."""
CURRENT_WATERMARK = "current_watermark"
"""The name under which a condition gets the watermark that the stage's inputs had before the batch, as a TIMESTAMP."""


class OnViolation(StrEnum):
    """The treatment of a row that violates an expectation."""

    FAIL = "fail"
    """The batch of the row fails."""
    DROP = "drop"
    """The row is counted and left out."""
    DIVERT = "divert"
    """The row goes into the table of ``violations=``."""


@dataclass(frozen=True)
class Expectations:
    """The expectations of a stage."""

    conditions: Mapping[str, str]
    """SQL conditions on the columns of the stage's result, by name."""
    on_violation: OnViolation
    violations: Sink | None
    """The sink of diverted rows."""

    @property
    def sorts(self) -> bool:
        """True if violating rows are dropped or diverted. Otherwise a violation fails the batch."""
        return self.on_violation is not OnViolation.FAIL

    @property
    def violated(self) -> str:
        """The SQL expression of :data:`VIOLATED`. A condition that is null is violated, as in a CHECK constraint of Delta."""
        fulfilled = " AND ".join(f"({condition}\n)" for condition in self.conditions.values())  # it may end with a comment
        names = ", ".join(f"CASE WHEN ({condition}\n) THEN NULL ELSE '{name}' END" for name, condition in self.conditions.items())
        return f"CASE WHEN {fulfilled} THEN NULL ELSE array_compact(array({names})) END"


def declare_expectations(
    place: Place,
    expect: Mapping[str, str] | None,
    on_violation: str | None,
    violations: DeltaSink | None,
    sink: Sink | None,
) -> Expectations | None:
    """Returns a stage's expectations, checked as far as possible without its columns; see :meth:`spark_jobs.Pipeline.stage`."""
    if expect is None:
        if on_violation is not None or violations is not None:
            option = "violations=" if on_violation is None else "on_violation="
            raise place.refused(f"it has {option} without expect=.", f"Add expect=, or remove {option}.")
        return None
    mistakes = Mistakes()
    with mistakes.noted():
        _check_conditions(place, expect)
    with mistakes.noted():
        default = OnViolation.FAIL if violations is None else OnViolation.DIVERT
        chosen = default if on_violation is None else choice(place.refused, "on_violation", OnViolation, on_violation)
        diverted = _violations(place, chosen, violations)
        if chosen is not OnViolation.FAIL and sink is not None:
            _check_sortable(place, chosen, sink)
    mistakes.check()
    return Expectations(MappingProxyType(dict(expect)), chosen, diverted)


def _check_conditions(place: Place, expect: object) -> None:
    """Refuses anything but a mapping of names to texts, with all mistakes in one error."""
    if not isinstance(expect, Mapping) or not expect:
        raise place.refused(
            f"expect={expect!r} is not a mapping of names to conditions.", 'Write expect={"positive": "amount > 0"}.'
        )
    mistakes = Mistakes()
    for name, condition in expect.items():
        with mistakes.noted():
            check_name(Place(place.pipeline, "stage", place.name), name)
            if not isinstance(condition, str) or not condition.strip():
                raise place.refused(
                    f"its expectation {name!r} is {condition!r}, which is not a condition.",
                    'Write a SQL condition, such as "amount > 0".',
                    expectation=name,
                )
    mistakes.check()


def _violations(place: Place, on_violation: OnViolation, violations: DeltaSink | None) -> Sink | None:
    if on_violation is not OnViolation.DIVERT:
        if violations is not None:
            raise place.refused(
                f'violations= is for on_violation="divert"; this one is "{on_violation.value}".', "Remove one of them."
            )
        return None
    if violations is None:
        raise place.refused(
            'on_violation="divert" needs a table for the rows.', 'Add violations=DeltaSink("{warehouse}/rejected").'
        )
    sink = declare_sink(place, violations, "violations", f"{place.name}_violations")
    if sink.mode is not SinkMode.APPEND:
        raise sink.place.refused(
            f'the table of violations= has mode="{sink.mode.value}", and a row may be there more than once.',
            'Remove mode=: it is "append".',
        )
    return sink


def _check_sortable(place: Place, on_violation: OnViolation, sink: Sink) -> None:
    """Refuses a sink that depends on the batches of its stage. Sorted rows reach the sink in other batches than the stage's."""
    if sink.mode is SinkMode.COMPLETE:
        raise place.refused(
            f'on_violation="{on_violation.value}" cannot be used with a sink with mode="complete".',
            'Use on_violation="fail", or leave the rows out before they are aggregated.',
        )
    if sink.merge is not None and sink.merge.sequence_by is None:
        raise place.refused(
            f'on_violation="{on_violation.value}" needs sequence_by in a sink with mode="{sink.mode.value}": '
            "its batches are not those of the stage.",
            'Name the column that orders a key\'s rows: sequence_by="changed_at".',
        )
