"""Calls the function of a stage with frames whose ``withWatermark`` sets a watermark that the runtime moves."""

from collections.abc import Callable, Mapping
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame

from spark_jobs.api.stage import Stage
from spark_jobs.protocol.errors import InvalidPipelineError
from spark_jobs.runtime.spark import plan
from spark_jobs.runtime.stages.event_time import OwnWatermark, OwnWatermarks
from spark_jobs.runtime.stages.stage_inputs import ReadInput


class InputFrame(ClassicDataFrame):
    """An input of a stage that reports each call of ``withWatermark``. The call returns the same frame if the input has that watermark."""

    _note: Callable[[OwnWatermark], bool]

    @classmethod
    def of(cls, frame: DataFrame, note: Callable[[OwnWatermark], bool]) -> "InputFrame":
        """Returns the frame as an input.

        Args:
            frame: The frame.
            note: Called with each watermark that is set. Returns True if the input has it.
        """
        found = object.__new__(cls)
        found.__dict__.update(frame.__dict__)
        found._note = note
        return found

    def withWatermark(self, eventTime: str, delayThreshold: str) -> DataFrame:
        marked = super().withWatermark(eventTime, delayThreshold)
        columns = plan.event_time_columns(marked)
        if len(columns) != 1:  # a field of a struct has no watermark that the runtime could move
            return marked
        is_set = self._note(OwnWatermark(columns[0].name, columns[0].delay_ms))
        return self if is_set else InputFrame.of(marked, self._note)

    def filter(self, condition: Any) -> DataFrame:
        return InputFrame.of(super().filter(condition), self._note)

    def where(self, condition: Any) -> DataFrame:
        return self.filter(condition)

    def alias(self, alias: str) -> DataFrame:
        return InputFrame.of(super().alias(alias), self._note)


def call_with_own_watermarks(
    stage: Stage,
    read: Callable[[OwnWatermarks], Mapping[str, ReadInput]],
    call: Callable[[Mapping[str, DataFrame]], DataFrame],
) -> tuple[Mapping[str, ReadInput], DataFrame]:
    """Returns the inputs of a stage with the watermarks that its function sets on them, and the result of the function.

    A function that sets watermarks is called twice: to find them, and with inputs that have them.

    Args:
        stage: The stage.
        read: Returns the inputs of the stage with the given watermarks, which are by argument of its function.
        call: Calls the function of the stage with frames by argument.

    Raises:
        InvalidPipelineError: The function sets two watermarks on one input, or different ones when it is called again.
    """
    own: dict[str, OwnWatermark] = {}
    for _ in range(2):
        inputs, noted = read(own), dict[str, OwnWatermark]()
        frames = {argument: each.frame for argument, each in inputs.items()}
        given = {
            argument: InputFrame.of(frame, _noting(stage, argument, own, noted)) if frame.isStreaming else frame
            for argument, frame in frames.items()
        }
        result = call(given)
        if noted == own:
            return inputs, result
        own = noted
    raise InvalidPipelineError(
        f"Stage '{stage.name}' sets other watermarks on its inputs each time it is called.",
        safe="Nothing was staged.",
        remedy="Set the same ones.",
        stage=stage.name,
    )


def _noting(stage: Stage, argument: str, own: OwnWatermarks, noted: dict[str, OwnWatermark]) -> Callable[[OwnWatermark], bool]:
    """Returns a function that records a watermark of an input in ``noted``. It returns True if ``own`` has the same one."""

    def note(watermark: OwnWatermark) -> bool:
        if noted.setdefault(argument, watermark) != watermark:
            raise InvalidPipelineError(
                f"Stage '{stage.name}' sets two watermarks on its input '{argument}'.",
                safe="Nothing was staged.",
                remedy="Set one. For another delay, read the input in another stage.",
                stage=stage.name,
            )
        return own.get(argument) == watermark

    return note
