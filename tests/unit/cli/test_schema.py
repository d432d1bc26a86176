import json
from pathlib import Path

from tests.support.command_line import UsedHome, document, spark_jobs


def test_the_schema_names_the_parameters_and_no_secret(unused: UsedHome) -> None:
    shown = spark_jobs("schema", unused.entry)
    assert shown.exit_code == 0
    assert list(document(shown)["properties"]) == ["warehouse", "days"]
    assert document(shown)["required"] == ["warehouse"]


def test_the_schema_can_be_written_to_a_file_that_a_dag_reads(unused: UsedHome, tmp_path: Path) -> None:
    target = tmp_path / "flights.schema.json"
    target.write_text("old")
    written = spark_jobs("schema", unused.entry, "--output-file", target)
    assert (written.exit_code, written.stdout) == (0, "")
    assert str(target) in written.stderr
    assert json.loads(target.read_text()) == document(spark_jobs("schema", unused.entry))


def test_a_file_in_a_missing_directory_is_refused(unused: UsedHome, tmp_path: Path) -> None:
    refused = spark_jobs("schema", unused.entry, "--output-file", tmp_path / "no" / "s.json")
    assert refused.exit_code == 2
    assert "is not a directory" in refused.stderr
    assert not (tmp_path / "no").exists()


def test_a_missing_pipeline_file_is_refused(tmp_path: Path) -> None:
    refused = spark_jobs("schema", tmp_path / "flights.py", "--output", "json")
    assert refused.exit_code == 2
    assert document(refused)["error"]["error"] == "InvalidPipelineError"
