"""Decides how long a wait tolerates a home that cannot be read. Reads no home and no clock."""

from spark_jobs.protocol.errors import AccessDeniedError, StorageError, StreamPipelineError

STORAGE_PATIENCE_S = 300.0
"""How long a wait tolerates a home that cannot be read."""
LOOK_PATIENCE_S = STORAGE_PATIENCE_S
"""How long one look may take. A wait tolerates a silent storage as long as an unavailable one."""
LOOK_MAX_S = 30.0
"""How long the last look may take after the deadline. Its result explains the state at the deadline."""


class Patience:
    """Decides how long a wait tolerates a home that cannot be read. It does not judge the results of looks.

    Args:
        end_s: The deadline of the wait on a monotonic clock; None: there is none.
    """

    def __init__(self, end_s: float | None) -> None:
        self._end_s = end_s
        self._away_since_s: float | None = None
        self._has_seen = False

    def seen(self) -> None:
        """Records that a look has succeeded."""
        self._away_since_s, self._has_seen = None, True

    @property
    def is_tried(self) -> bool:
        """True if the last look has failed."""
        return self._away_since_s is not None

    def look_max_s(self, now_s: float) -> float:
        """Returns how long a look that begins now may take. A second look would hang like the first one, in one more thread."""
        return LOOK_PATIENCE_S if self._end_s is None else min(LOOK_PATIENCE_S, max(0.0, self._end_s - now_s) + LOOK_MAX_S)

    def tolerates(self, error: StreamPipelineError, now_s: float) -> bool:
        """Returns True if the wait looks again after this failed look. Records since when the looks fail.

        A refusal after an earlier success is tolerated: the storage may be about to get new keys, or its clock may be wrong.
        """
        self._away_since_s = now_s if self._away_since_s is None else self._away_since_s
        passing = isinstance(error, StorageError) and (self._has_seen or not isinstance(error, AccessDeniedError))
        before_end = self._end_s is None or now_s < self._end_s
        return passing and before_end and now_s - self._away_since_s < STORAGE_PATIENCE_S
