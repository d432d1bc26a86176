"""Decides which work directory an attempt uses: the last one, or one built from the newest checkpoint."""

from pathlib import Path

from spark_jobs.control.checkpoint_requests import CheckpointRequests
from spark_jobs.home.layout import work_path
from spark_jobs.protocol.documents import AttemptDocument, Manifest, WorkDirectory
from spark_jobs.protocol.errors import CorruptDocumentError, RejectedError
from spark_jobs.protocol.ids import StageName, new_work_directory_id
from spark_jobs.protocol.spark_versions import spark_minor
from spark_jobs.protocol.start_requests import StartRequest
from spark_jobs.runtime.spark.spark_log import SparkLog, checkpoint_directory
from spark_jobs.runtime.start.decision import HomeFacts
from spark_jobs.runtime.start.drain_marks import drain_begun, has_lost_a_drain
from spark_jobs.runtime.start.restore import is_half_built, is_whole
from spark_jobs.storage.files import Files, is_mounted

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def boot_id() -> str | None:
    """Returns the system's id of the host's boot, or None.

    Spark leaves it to the operating system to make its files durable. A crashed host may have lost some of them, and then no file of a work
    directory can be trusted.
    """
    return _BOOT_ID.read_text().strip() if _BOOT_ID.exists() else None


def new_work_directory(host: str) -> WorkDirectory:
    """Returns a new work directory."""
    directory = new_work_directory_id()
    return WorkDirectory(id=directory, path=work_path(directory), host=host)


def why_not_in_place(home: Files, previous: AttemptDocument, head: Manifest | None, boot: str | None) -> str | None:
    """Returns the reason why the earlier attempt's work directory cannot be continued, in a few words, or None.

    Args:
        home: The home.
        previous: The newest attempt.
        head: The newest checkpoint of its incarnation.
        boot: Id of this host's boot.
    """
    work = home.below(previous.work_directory.path)
    if not is_mounted(work):
        return "it is in a store, where each attempt has its own"
    if is_half_built(work):
        return "it is incomplete"
    if not work.names(""):
        return "it is gone"
    try:
        drain = drain_begun(work)
    except CorruptDocumentError:
        return "its stages were being drained for an unknown request"
    if drain is None and has_lost_a_drain(work):
        return "its stages were being drained for an unknown request"
    if drain is not None and drain not in [each.request for each in CheckpointRequests(home).open()]:
        return "its stages were being drained for a request that is no longer open"
    if boot != previous.boot and previous.boot is not None:
        return "its host was rebooted, or it belongs to another host"
    if head is None:
        return None
    if head.work_directory != previous.work_directory.id:
        try:
            built = is_whole(work, head)
        except RejectedError:
            built = False
        if not built:
            return f"checkpoint {head.checkpoint} was taken in another work directory"
    lost = _lost(work, head)
    return None if lost is None else f"it has lost batches of stage '{lost}' that checkpoint {head.checkpoint} has"


def why_rebuilt(home: Files, request: StartRequest, facts: HomeFacts, boot: str | None, spark: str | None) -> str | None:
    """Returns the reason why a start uses a new work directory, in a few words, or None if it continues the earlier one.

    Args:
        home: The home.
        request: Start request.
        facts: Past of the home, with an attempt.
        boot: Id of this host's boot.
        spark: Minor version of the installed Spark; None if there is none.
    """
    why = why_not_in_place(home, facts.newest, facts.head, boot)
    before = facts.newest.versions.get("pyspark")
    if why is None and before and spark and spark_minor(before) != spark:
        return f"Spark {spark_minor(before)} has written it, but this is Spark {spark}"
    if why is None and request.state_partitions not in (None, facts.newest.state_partitions):
        return f"its state gets {request.state_partitions} partitions"
    return why


def _lost(work: Files, manifest: Manifest) -> StageName | None:
    """Returns a stage whose newest batch in a work directory is before its cut in a checkpoint taken there, or None."""
    stages = manifest.stages.items()
    return next((name for name, cut in stages if SparkLog(work, checkpoint_directory(name)).last_commit() < cut.batch), None)
