"""A driver that cannot compile the class for checkpoint files in S3 is refused, with the setting that does without the class."""

from types import SimpleNamespace
from typing import Any

import pytest

from spark_jobs.protocol.errors import MissingRequirementError
from spark_jobs.publication.java_sources import JavaSourceError
from spark_jobs.runtime.spark import direct_checkpoint_files
from spark_jobs.runtime.spark.direct_checkpoint_files import write_directly
from spark_jobs.runtime.spark.session import CHECKPOINT_FILES

SPARKS_OWN = "org.apache.spark.ByRename"


def test_a_class_that_cannot_be_compiled_is_refused_before_a_setting_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    def load_java(*_: object, **__: object) -> None:
        raise JavaSourceError("Cannot find CheckpointFileManager")

    monkeypatch.setattr(direct_checkpoint_files, "load_java", load_java)
    monkeypatch.setattr(direct_checkpoint_files, "spark_checkpoint_files", lambda session: SPARKS_OWN)
    settings = {CHECKPOINT_FILES: SPARKS_OWN}
    session: Any = SimpleNamespace(conf=SimpleNamespace(get=settings.get, set=settings.__setitem__))
    with pytest.raises(MissingRequirementError, match="into S3 cannot be compiled: Cannot find CheckpointFileManager") as refused:
        write_directly(session, "s3://lake/work")
    assert f"Set {CHECKPOINT_FILES}={SPARKS_OWN}" in refused.value.remedy
    assert settings == {CHECKPOINT_FILES: SPARKS_OWN}
