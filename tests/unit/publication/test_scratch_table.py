"""A log that names staged files exists exactly as long as its reader needs it."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from spark_jobs.publication.scratch_table import scratch_table

SCHEMA = json.dumps({"type": "struct", "fields": [{"name": "id", "type": "long", "nullable": True, "metadata": {}}]})
METADATA: dict[str, Any] = {"id": "t", "schemaString": SCHEMA, "partitionColumns": [], "configuration": {}}
PROTOCOL = {"minReaderVersion": 1, "minWriterVersion": 2}
LINES = [{"add": {"path": "a%20b.parquet", "partitionValues": {}}, "batch": 7}]


def test_it_names_each_file_where_it_lies_with_its_label(temporary: Path) -> None:
    with scratch_table("file:///t", METADATA, PROTOCOL, LINES, label="batch") as directory:
        (log,) = (directory / "_delta_log").iterdir()
        actions = [json.loads(line) for line in log.read_text().splitlines()]
    assert actions[2]["metaData"]["id"] != "t"
    assert actions[2]["metaData"]["partitionColumns"] == ["__batch"]
    assert actions[3]["add"] == {"path": "file:///t/a%20b.parquet", "partitionValues": {"__batch": "7"}}


def test_nothing_is_left_when_the_context_closes(temporary: Path) -> None:
    with scratch_table("file:///t", METADATA, PROTOCOL, LINES) as directory:
        assert directory.parent == temporary
    assert list(temporary.iterdir()) == []


def test_nothing_is_left_where_the_reader_or_the_writer_fails(temporary: Path) -> None:
    with pytest.raises(ZeroDivisionError), scratch_table("file:///t", METADATA, PROTOCOL, LINES):
        raise ZeroDivisionError
    with pytest.raises(KeyError, match="bin"), scratch_table("file:///t", METADATA, PROTOCOL, LINES, label="bin"):
        pass
    assert list(temporary.iterdir()) == []


LASTING = """
import sys, tempfile
from spark_jobs.publication.scratch_table import lasting_scratch_table
tempfile.tempdir = sys.argv[1]
print(lasting_scratch_table("file:///t", {0!r}, {1!r}, {2!r}).is_dir())
"""


def test_one_that_a_user_keeps_is_removed_when_the_process_ends(temporary: Path) -> None:
    command = [sys.executable, "-c", LASTING.format(METADATA, PROTOCOL, LINES), str(temporary)]
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout == "True\n"
    assert list(temporary.iterdir()) == []
