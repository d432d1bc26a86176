"""Reads the logs of Delta tables as JSON, without Spark, delta-rs or code of the product."""

import json
import re
from pathlib import Path
from typing import Any

Action = dict[str, Any]

_IMPLIED_BY_WRITER = {
    2: ("appendOnly", "invariants"),
    3: ("checkConstraints",),
    4: ("changeDataFeed", "generatedColumns"),
    5: ("columnMapping",),
    6: ("identityColumns",),
}
_FEATURE_READER, _FEATURE_WRITER = 3, 7
_CLOSED = 2**62
_V2_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint\.[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\.(?:json|parquet)")


def commits(table: Path) -> list[list[Action]]:
    """Returns the actions of each version."""
    files = sorted((table / "_delta_log").glob("*.json"))
    return [[json.loads(line) for line in file.read_text().splitlines()] for file in files if file.stem.isdigit()]


def newest(table: Path, action: str) -> Action:
    """Returns the last action of a kind, such as ``protocol``."""
    found: Action = [each[action] for commit in commits(table) for each in commit if action in each][-1]
    return found


def features(table: Path) -> frozenset[str]:
    """Returns the table features that the protocol supports: the listed ones, or those that its older versions imply."""
    protocol = newest(table, "protocol")
    if protocol["minWriterVersion"] >= _FEATURE_WRITER:
        listed = frozenset(protocol["writerFeatures"])
        assert listed >= set(protocol.get("readerFeatures", ())), "every reader feature is a writer feature"
        assert protocol["minReaderVersion"] != _FEATURE_READER or protocol["readerFeatures"]
        return listed
    implied = (names for version, names in _IMPLIED_BY_WRITER.items() if version <= protocol["minWriterVersion"])
    return frozenset(name for names in implied for name in names)


def publications(table: Path) -> list[int]:
    """Returns the versions that have published rows."""
    return [
        version
        for version, commit in enumerate(commits(table))
        if any("txn" in action and action["txn"]["version"] < _CLOSED for action in commit)
    ]


def files(table: Path, version: int) -> list[Action]:
    """Returns the ``add`` actions of the files in a version."""
    found: dict[str, Action] = {}
    for commit in commits(table)[: version + 1]:
        for action in commit:
            if "remove" in action:
                found.pop(_identity(action["remove"]), None)
            elif "add" in action:
                found[_identity(action["add"])] = action["add"]
    return list(found.values())


def v2_checkpoints(table: Path) -> list[int]:
    """Returns the versions that have a checkpoint named by a UUID, which only version 2 of checkpoints uses."""
    names = (_V2_CHECKPOINT.fullmatch(path.name) for path in (table / "_delta_log").iterdir())
    return sorted(int(name[1]) for name in names if name)


def _identity(file: Action) -> str:
    """Returns the identity of a file. A file with another deletion vector has another identity."""
    vector = file.get("deletionVector")
    return json.dumps([file["path"], vector and [vector["storageType"], vector["pathOrInlineDv"], vector.get("offset")]])
