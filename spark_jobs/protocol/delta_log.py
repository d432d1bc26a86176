"""The names in the log of a Delta table."""

import re
from collections import defaultdict
from collections.abc import Iterable

DELTA_LOG = "_delta_log"
LAST_CHECKPOINT = "_last_checkpoint"
"""A hint at the newest checkpoint, which is overwritten. A reader without it lists the log."""
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
        """By version the files of one checkpoint: there may be several of a version, which say the same."""
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
        """The newest version, None in an empty log."""
        return max((*self.commits, *self.checkpoints), default=None)

    @property
    def needed_from(self) -> int | None:
        """The last checkpoint but one; None where there are fewer. Readers need nothing of what comes before it.

        They begin at the last one. But one that has listed the log just before that appeared begins at the one before.
        """
        return sorted(self.checkpoints)[-2] if len(self.checkpoints) > 1 else None

    def lacking(self, last: int = -1) -> list[int]:
        """Returns the versions without a commit after the oldest checkpoint; where there is none, from the beginning on. Ascending.

        Args:
            last: A version that the log is known to have had.
        """
        first = min(self.checkpoints) + 1 if self.checkpoints else 0
        return sorted(set(range(first, max(last, *self.commits, *self.checkpoints, -1) + 1)) - self.commits)


def commit_name(version: int) -> str:
    """Returns the name of the commit of a version."""
    return f"{version:020}.json"


def version_of(name: str) -> int | None:
    """Returns the version that a file of a log is of; None where it is of none."""
    found = _OF_VERSION.match(name)
    return found and int(found["version"])
