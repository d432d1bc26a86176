"""The directory of this product among the caches of a user: nothing in it is needed after it was deleted."""

import os
from pathlib import Path


def user_cache() -> Path | None:
    """Returns the directory, which may not exist yet. Returns None for a user without a home directory."""
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").absolute() / "spark-jobs"
    except RuntimeError:
        return None
