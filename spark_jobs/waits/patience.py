"""Decides how long a wait tolerates a home that cannot be read. Reads no home and no clock."""

from spark_jobs.protocol.errors import AccessDeniedError, StorageError, StreamPipelineError
from spark_jobs.waits.limits import LIMITS, WaitLimits


class Patience:
    """Decides how long a wait tolerates a home that cannot be read. It does not judge the results of looks.

    Args:
        end_s: The deadline of the wait on a monotonic clock; None: there is none.
        limits: The time limits of the wait.
    """

    def __init__(self, end_s: float | None, limits: WaitLimits = LIMITS) -> None:
        self._end_s, self._limits = end_s, limits
        self._away_since_s: float | None = None
        self._has_seen = False

    def seen(self) -> None:
        """Records that a look has succeeded."""
        self._away_since_s, self._has_seen = None, True

    @property
    def last_look_failed(self) -> bool:
        """True if the last look has failed."""
        return self._away_since_s is not None

    def look_max_s(self, now_s: float) -> float:
        """Returns how long a look that begins now may take. The limit is long, because another look would hang too, in one more thread."""
        longest_s = self._limits.storage_s
        return longest_s if self._end_s is None else min(longest_s, max(0.0, self._end_s - now_s) + self._limits.last_look_s)

    def tolerates(self, error: StreamPipelineError, now_s: float) -> bool:
        """Returns True if the wait looks again after this failed look. Records since when the looks fail.

        A refusal after an earlier success is tolerated: the storage may be about to get new keys, or its clock may be wrong.
        """
        self._away_since_s = now_s if self._away_since_s is None else self._away_since_s
        passing = isinstance(error, StorageError) and (self._has_seen or not isinstance(error, AccessDeniedError))
        before_end = self._end_s is None or now_s < self._end_s
        return passing and before_end and now_s - self._away_since_s < self._limits.storage_s
