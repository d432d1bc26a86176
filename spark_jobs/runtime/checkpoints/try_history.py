"""Records a try at a checkpoint in the history: the duration of its steps, its cut, its state and its outcome."""

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any

from spark_jobs.background import run_with_deadline
from spark_jobs.checkpoint.checkpoint_store import CheckpointStore
from spark_jobs.protocol.documents import CheckpointKind, SinkCut
from spark_jobs.protocol.errors import DeadlineExceededError, StreamPipelineError
from spark_jobs.protocol.history import CheckpointHistory, StepTime
from spark_jobs.protocol.ids import AttemptNumber, CheckpointId, StageName
from spark_jobs.protocol.masking import Mask, masked_error
from spark_jobs.protocol.reports import report_error
from spark_jobs.protocol.stage_cut import StageCut, StateFile
from spark_jobs.runtime.checkpoints.cut import Cut
from spark_jobs.runtime.staged.private_log import StagedAmount
from spark_jobs.runtime.stages.stage import StageRun
from spark_jobs.runtime.state.pinning import PinnedState

_LOG = logging.getLogger(__name__)
_TIMEOUT_S = 5.0


@dataclass
class TryHistory:
    """The history of one try, until it is recorded."""

    store: CheckpointStore
    checkpoint: CheckpointId
    """Number of the checkpoint, if it becomes complete."""
    kind: CheckpointKind
    attempt: AttemptNumber
    began_at: datetime
    mask: Mask
    """Removes secrets from the failure."""
    _steps: list[StepTime] = field(default_factory=list)
    _seen: dict[str, Any] = field(default_factory=dict)

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Records the duration of a step that completes."""
        began_s = time.monotonic()
        yield
        self._steps.append(StepTime(step=name, duration_s=round(time.monotonic() - began_s, 4)))

    def see_cut(
        self,
        stages: Sequence[StageRun],
        cut: Cut,
        finished: tuple[StageName, ...],
        behind: tuple[StageName, ...],
        in_flight: Sequence[StagedAmount],
    ) -> None:
        """Records the cuts of the stages and the batches in flight there."""
        self._seen = {
            "aligned": cut.aligned,
            "behind": behind,
            "alignment_s": round(cut.alignment_s, 4),
            "in_flight_rows": sum(staged.rows for staged in in_flight),
            "in_flight_bytes": sum(staged.size_bytes for staged in in_flight),
            "finished": finished,
            "ended_inputs": {stage.stage.name: tuple(sorted(stage.ended)) for stage in stages if stage.ended},
        }

    def see_state(self, pinned: Mapping[StageName, PinnedState], files: Mapping[StageName, tuple[StateFile, ...]]) -> None:
        """Records which state is new and which is from earlier checkpoints."""
        reused = [file for state in pinned.values() for file in state.held]
        everything = [file for stage in files.values() for file in stage]
        self._seen |= {
            "new_state_files": len(everything) - len(reused),
            "new_state_bytes": sum(file.size_bytes for file in everything) - sum(file.size_bytes for file in reused),
            "reused_state_files": len(reused),
            "reused_state_bytes": sum(file.size_bytes for file in reused),
        }

    def see_violations(self, stages: Mapping[StageName, StageCut]) -> None:
        """Records the number of rows of the round that violate expectations of their stages."""
        self._seen |= {"violations": {name: cut.violations for name, cut in stages.items() if cut.violations}}

    def record(self, sinks: Sequence[SinkCut], failure: StreamPipelineError | None) -> None:
        """Writes the outcome of the try. No decision reads the history: if it cannot be written in time, that is logged."""
        history = CheckpointHistory(
            checkpoint=self.checkpoint,
            checkpoint_kind=self.kind,
            attempt=self.attempt,
            began_at=self.began_at,
            steps=tuple(self._steps),
            files=sum(cut.actions.files for cut in sinks),
            size_bytes=sum(cut.actions.size_bytes for cut in sinks),
            rows=sum(cut.actions.rows for cut in sinks),
            **self._seen,
            failure=report_error(masked_error(failure, self.mask)) if failure else None,
        )
        silent = DeadlineExceededError(
            f"The home did not answer within {_TIMEOUT_S:.0f} s.",
            remedy="Check that its storage answers. No decision reads the history.",
        )
        try:
            run_with_deadline(partial(self.store.record, history), time.monotonic() + _TIMEOUT_S, lambda: silent)
        except StreamPipelineError as error:
            _LOG.warning("the history lacks a try at checkpoint %d: %s", self.checkpoint, error)
