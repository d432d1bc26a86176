"""What is kept of attempts."""

from pathlib import Path

from spark_jobs.control.attempts import LOGS_KEPT, Attempts, forget_old_logs
from spark_jobs.protocol.ids import AttemptNumber
from spark_jobs.storage.local import LocalFiles
from tests.unit.control.test_channel import attempt


def test_only_the_newest_attempts_keep_their_logs(tmp_path: Path) -> None:
    files, live = LocalFiles(tmp_path), LOGS_KEPT + 3
    for number in range(1, live + 1):
        Attempts(files).create(attempt(number))
        for name in (f"{number}.log", f"{number}.log.1", f"driver-{number}.out", f"driver-{number}.out.1"):
            files.create(f"attempts/{name}", b"said")
    files.create("attempts/1/owner-1.json", b"{}")
    forget_old_logs(files, AttemptNumber(live))
    kept = [name for name in files.names("attempts") if name.endswith((".log", ".out", ".1"))]
    assert {int("".join(filter(str.isdigit, name.removesuffix(".1")))) for name in kept} == set(range(4, live + 1))
    assert len(kept) == 4 * LOGS_KEPT
    assert Attempts(files).numbers() == list(range(1, live + 1))
    assert files.names("attempts/1") == ["owner-1.json"]
