"""Times that travel between processes, on the clock of one of them that only goes forward."""

import time


def monotonic_at(at: float) -> float:
    """The time ``at``, in seconds since 1970, on :func:`time.monotonic`."""
    return time.monotonic() + at - time.time()
