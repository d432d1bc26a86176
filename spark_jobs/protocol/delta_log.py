"""The file names in the log of a Delta table."""

import re
from collections import defaultdict
from collections.abc import Iterable

DELTA_LOG = "_delta_log"
PUBLICATION_LOCK = ".spark-jobs-publication.lock"
"""Our file in the log of a table on a disk: the lock of a process that publishes with Spark. Readers of Delta ignore it."""
LAST_CHECKPOINT = "_last_checkpoint"
"""The file that names the newest checkpoint, as a hint. It is overwritten. A reader without it lists the log."""
_COMMIT = re.compile(r"(?P<version>\d{20})\.json")
_CHECKPOINT = re.compile(
    r"(?P<version>\d{20})\.checkpoint\."
    r"(?:parquet|(?P<part>\d{10})\.(?P<parts>\d{10})\.parquet|(?P<v2>[0-9a-fA-F-]{36})\.(?:parquet|json))"
)
_OF_VERSION = re.compile(r"(?P<version>\d{20})\.")


class LogListing:
    """The commits and the complete checkpoints among the names in a log's directory."""

    def __init__(self, names: Iterable[str]) -> None:
        self.commits: set[int] = set()
        self.checkpoints: dict[int, list[str]] = {}
        """The files of checkpoints by version. A version may have several equivalent checkpoints."""
        parts: dict[tuple[int, int], list[str]] = defaultdict(list)
        for name in names:
            if found := _COMMIT.fullmatch(name):
                self.commits.add(int(found["version"]))
            elif found := _CHECKPOINT.fullmatch(name):
                parts[int(found["version"]), int(found["parts"] or 1)].append(name)
        for (version, count), some in sorted(parts.items()):
            if count == 1:
                self.checkpoints[version] = some[:1]
            elif len(some) == count:
                self.checkpoints.setdefault(version, some)

    @property
    def newest(self) -> int | None:
        """Returns the newest version, or None for an empty log."""
        return max((*self.commits, *self.checkpoints), default=None)

    @property
    def needed_from(self) -> int | None:
        """The last checkpoint but one, or None if there are fewer. Readers need nothing before it.

        Readers begin at the last checkpoint. A reader that listed the log just before that checkpoint appeared begins at the one before.
        """
        return sorted(self.checkpoints)[-2] if len(self.checkpoints) > 1 else None

    def lacking(self, last: int = -1) -> list[int]:
        """Returns the versions without a commit after the oldest checkpoint, or after the beginning, ascending.

        Args:
            last: Newest version that the log is known to have had.
        """
        first = min(self.checkpoints) + 1 if self.checkpoints else 0
        return sorted(set(range(first, max(last, *self.commits, *self.checkpoints, -1) + 1)) - self.commits)


def commit_name(version: int) -> str:
    """Returns the file name of a version's commit."""
    return f"{version:020}.json"


def version_of(name: str) -> int | None:
    """Returns the version of a file in a log, or None for other files."""
    found = _OF_VERSION.match(name)
    return found and int(found["version"])
