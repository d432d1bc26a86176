"""Looks at a home through its documents: what tasks and triggers see of it."""

from dataclasses import dataclass

from airflow_provider.local_driver import LocalDriver
from airflow_provider.waiting import Look
from spark_jobs.checkpoint.store import CheckpointStore
from spark_jobs.control.channel import Channel
from spark_jobs.control.liveness import driver_at_work
from spark_jobs.control.status import read_status
from spark_jobs.protocol.documents import CheckpointKind, Manifest
from spark_jobs.protocol.ids import CheckpointId, RequestId, RunId, start_request_id
from spark_jobs.storage.files import Files


def look_for_answer(files: Files, request: RequestId, driver: LocalDriver | None = None) -> Look:
    """What the home shows of an open request.

    Args:
        files: The home.
        request: The start request.
        driver: The driver, where this process has started it.
    """
    exit_code = driver.exit_code if driver is not None else None
    status = read_status(files)
    return Look(
        exit_code=exit_code,
        ours_runs=driver is not None and exit_code is None,
        at_work=driver_at_work(files),
        status=status if status is not None and start_request_id(status.attempt) == request else None,
        answer=Channel(files).response(request),
    )


def same_run(before: Look, now: Look) -> bool:
    """Whether nothing has happened but heartbeats."""
    return (before.at_work, before.answer, _news(before)) == (now.at_work, now.answer, _news(now))


def _news(look: Look) -> object:
    return look.status and look.status.model_dump(exclude={"updated_at"})


ANY_CHECKPOINT = CheckpointId(0)
"""Every checkpoint is newer."""


@dataclass(frozen=True)
class WantedCheckpoint:
    """Which checkpoint is waited for."""

    final: bool
    """Only a final one."""
    run: RunId | None = None
    """Only one of this run, or the one that it was answered with: another run may have finished its round."""
    newer_than: CheckpointId = ANY_CHECKPOINT
    """Only one with a higher number."""


def find_checkpoint(files: Files, wanted: WantedCheckpoint) -> Manifest | None:
    """The newest checkpoint that is wanted; None while there is none."""
    store = CheckpointStore(files)
    answer = None if wanted.run is None else Channel(files).answer(wanted.run)
    for number in reversed(store.ids()):
        if number <= wanted.newer_than:
            return None
        manifest = store.manifest(number)
        final = manifest.checkpoint_kind is CheckpointKind.FINAL
        asked = wanted.run in (None, manifest.run) or (answer is not None and manifest.checkpoint == answer.checkpoint)
        if asked and (final or not wanted.final):
            return manifest
    return None
