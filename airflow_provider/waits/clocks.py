"""Converts times between processes."""

import time


def monotonic_at(at: float) -> float:
    """Converts ``at``, in seconds since 1970, to :func:`time.monotonic` of this process."""
    return time.monotonic() + at - time.time()
