"""Builds the XCom values of tasks from manifests and answers, as JSON values."""

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from airflow_provider.waits.pipeline_states import newest_checkpoint
from spark_jobs.checkpoint.checkpoint_store import CheckpointStore
from spark_jobs.control.cancelling import Cancelled, outcome_of
from spark_jobs.control.losses import LedgerEntry, LossLedger, LossState
from spark_jobs.protocol.checkpoint_requests import CheckpointResponse
from spark_jobs.protocol.documents import BlockedPublication, Manifest, SinkResult, StartResponse, Status, TidiedInput
from spark_jobs.protocol.ids import AttemptNumber, CheckpointId, InputName, LossId, RunId, SinkName, StageName
from spark_jobs.protocol.losses import Loss, rows_at_most, said
from spark_jobs.publication.publisher import Publication
from spark_jobs.storage.files import Files


class HomeResult(NamedTuple):
    """The result of a task in one home."""

    facts: Mapping[str, Any]
    """The value of a function of this module."""
    manifest: Manifest | None
    """The manifest of the checkpoint; None if the checkpoint was discarded since."""


def run_facts(
    home: str,
    answer: StartResponse,
    manifest: Manifest | None,
    tidied: Mapping[InputName, TidiedInput] = MappingProxyType({}),
    open_losses: Collection[LossId | None] = (),
    exact: bool | None = None,
    budget_left_rows: dict[StageName, int] | None = None,
) -> dict[str, Any]:
    """Returns the result of a finished run.

    Args:
        home: URL of the home.
        answer: The answer to the run's start request.
        manifest: The manifest of its checkpoint; None if that checkpoint was discarded since.
        tidied: By source, the record of the archived or deleted files of the round.
        open_losses: The losses that are not accepted.
        exact: True if the checkpoint lacks no rows, except those whose loss is accepted.
        budget_left_rows: The number of rows that each stage with ``tolerate=`` may still lose.

    Returns:
        - ``home``, ``run``, ``round``, ``attempt``, ``checkpoint``, ``drained`` and ``completed_at``.
        - ``sinks``: by sink its ``table``, Delta ``version`` (None while the rows are only staged) and ``rows``.
        - ``behind``: the sinks whose tables show less than the others in this checkpoint.
        - ``blocked``: the publication that was blocked at the end, or None: the ``waiting`` sinks, ``since`` when, and a ``summary`` in
          words of what failed and what to do.
        - ``violations``: by stage and expectation, the number of rows of the round that violate it.
        - ``losses``: what the round has left out: ``loss`` (the id in the ledger), ``source``, ``stage``, ``rows_at_most`` (None if
          unknown), whether it is ``open`` and, in words, ``lost``.
        - ``exact``: whether the checkpoint lacks no rows, except those whose loss is accepted.
        - ``budget_left_rows``: by stage with ``tolerate=``, the number of rows that it may still lose.
        - ``tidied``: by source, the files that were to be archived or deleted and are still ``left``.

        Without a manifest, ``round``, ``drained``, ``completed_at``, ``behind``, ``exact`` and ``violations`` are None.
    """
    known = _facts(home, manifest, exact) if manifest is not None else _unknown(home, answer.checkpoint)
    losses = manifest.losses if manifest is not None else ()
    return known | {
        "run": answer.run,
        "attempt": answer.attempt,
        "sinks": _results(answer.sinks),
        "behind": _behind(manifest, answer.blocked),
        "blocked": _blocked(answer.blocked),
        "losses": [loss_facts(loss) | {"open": loss.id in open_losses} for loss in losses],
        "budget_left_rows": budget_left_rows,
        "tidied": {name: {"tidied_at": each.tidied_at.isoformat(), "left": list(each.left)} for name, each in tidied.items()},
    }


def loss_facts(loss: Loss) -> dict[str, Any]:
    """Returns a loss as ``loss`` (the id in the ledger), ``source``, ``stage``, ``rows_at_most`` and, in words, ``lost``."""
    return {
        "loss": loss.id,
        "source": loss.input,
        "stage": loss.stage,
        "rows_at_most": rows_at_most(loss),
        "lost": said(loss),
    }


def live_facts(home: str, run: RunId, attempt: AttemptNumber, status: Status | None) -> dict[str, Any]:
    """Returns ``home``, ``run`` and ``attempt`` of a pipeline that runs on, and its newest ``checkpoint`` or None."""
    checkpoint = status.checkpoint if status is not None and status.attempt == attempt else None
    return {"home": home, "run": run, "attempt": attempt, "checkpoint": checkpoint}


def acceptance_facts(home: str, accepted: Sequence[LedgerEntry], ledger: Sequence[LedgerEntry]) -> dict[str, Any]:
    """Returns ``home``, the ids of the accepted ``losses``, and the number of losses in the home that are still ``open``."""
    left = sum(entry.state is LossState.OPEN for entry in ledger)
    return {"home": home, "losses": [entry.recorded.loss.id for entry in accepted], "open": left}


def log_result(log: Any, facts: Mapping[str, Any], done_by: RunId) -> None:
    """Writes the result of a run into the task's log, and says so if another run has produced it."""
    if done_by != facts["run"]:
        log.warning(
            "Nothing was left to do: run %s has finished the pipeline with checkpoint %s. Use on_end='suspend' for runs that continue with "
            "later input, or fresh=True to begin again.",
            *(done_by, facts["checkpoint"]),
        )
    for name, sink in facts["sinks"].items():
        version = "staged" if sink["version"] is None else f"version {sink['version']}"
        log.info("Sink %s: %s of %s, %s rows", name, version, sink["table"], f"{sink['rows']:,}")
    if facts["blocked"]:
        log.warning("%s The next start tries to publish it again.", facts["blocked"]["summary"])
    if facts["behind"]:
        log.warning("Tables that show less than the others in checkpoint %s: %s", facts["checkpoint"], ", ".join(facts["behind"]))
    for stage, counts in (facts["violations"] or {}).items():
        for name, rows in counts.items():
            log.warning("Stage %s: %s rows violate the expectation %s", stage, f"{rows:,}", name)
    for loss in facts["losses"]:
        named = (loss["loss"], loss["stage"], loss["source"], loss["lost"])
        log.warning("Loss %s: stage %s continued without rows of %s: %s", *named)
    for name, found in facts["tidied"].items():
        log.info("Source %s: the files that were read were archived or deleted at %s", name, found["tidied_at"])
        if found["left"]:
            log.warning(
                "Source %s: %d files have changed since they were read, and were kept: %s",
                name,
                len(found["left"]),
                found["left"][0],
            )


def publication_facts(home: str, plan: Publication) -> dict[str, Any]:
    """Returns the result of a publication that was carried out: :func:`checkpoint_facts` with ``version``.

    ``rows`` are those of the checkpoint's round.

    If the checkpoint was public and was discarded since, everything except ``home``, ``checkpoint``, ``table`` and ``version`` is None.
    """
    sinks = _results(plan.results())
    if plan.was_discarded:
        return _unknown(home, plan.checkpoint) | {"sinks": {name: sink | {"rows": None} for name, sink in sinks.items()}}
    return _facts(home, plan.manifest, LossLedger(plan.files).is_exact(plan.manifest)) | {"sinks": sinks}


def checkpoint_facts(files: Files, found: Manifest | StartResponse) -> dict[str, Any]:
    """Returns a checkpoint as :func:`run_facts` does, without ``version``. ``rows`` are those that the checkpoint adds.

    For a checkpoint that was discarded since, the facts come from the answer of its run, and ``rows`` are those of the run's round.
    """
    if isinstance(found, StartResponse):
        facts = run_facts(files.url, found, None)
        return facts | {"sinks": {name: {"table": sink.table, "rows": sink.rows} for name, sink in found.sinks.items()}}
    sinks = {name: {"table": cut.table, "rows": cut.actions.rows} for name, cut in found.sinks.items()}
    return _facts(files.url, found, LossLedger(files).is_exact(found)) | {"sinks": sinks}


def savepoint_facts(files: Files, answer: CheckpointResponse) -> dict[str, Any]:
    """Returns the result of a savepoint or a stop.

    Returns:
        ``home``, ``request``, ``checkpoint``, ``savepoint`` (a URL), ``drained``, ``behind``, ``exact`` and ``blocked`` as in
        :func:`run_facts`, and by sink under ``sinks`` its ``table``, Delta ``version`` (None while the rows are only staged) and the
        ``rows`` that the checkpoint has added.
    """
    manifest = CheckpointStore(files).kept(answer.checkpoint) if answer.checkpoint else None
    sinks = {name: {"table": sink.table, "version": sink.version, "rows": sink.rows} for name, sink in answer.sinks.items()}
    return {
        "home": files.url,
        "request": answer.request,
        "checkpoint": answer.checkpoint,
        "savepoint": answer.savepoint,
        "drained": answer.drained,
        "behind": list(answer.behind),
        "exact": LossLedger(files).is_exact(manifest) if manifest else None,
        "blocked": _blocked(answer.blocked),
        "sinks": sinks,
    }


def cancel_facts(files: Files, cancelled: Cancelled | None) -> dict[str, Any]:
    """Returns the result of a cancel.

    Returns:
        ``home``, ``attempt`` and ``run`` (None if nothing ran), ``cancelled`` (whether the attempt was ended or its restart was
        prevented), and the newest complete ``checkpoint`` of the home, or None.
    """
    outcome = None if cancelled is None else outcome_of(files, cancelled)
    return {
        "home": files.url,
        "attempt": outcome and outcome.attempt,
        "run": outcome and outcome.run,
        "cancelled": outcome is not None and outcome.error is not None,
        "checkpoint": newest_checkpoint(files),
    }


def _facts(home: str, manifest: Manifest, exact: bool | None) -> dict[str, Any]:
    return {
        "home": home,
        "run": manifest.run,
        "round": manifest.round,
        "attempt": manifest.attempt,
        "checkpoint": manifest.checkpoint,
        "drained": manifest.drained,
        "completed_at": manifest.completed_at.isoformat(),
        "behind": list(manifest.sinks_behind),
        "exact": exact,
        "violations": {name: dict(cut.violations) for name, cut in manifest.stages.items() if cut.violations},
    }


def _unknown(home: str, checkpoint: CheckpointId | None) -> dict[str, Any]:
    """Returns :func:`_facts` of a checkpoint that was discarded."""
    nothing = dict.fromkeys(("run", "round", "attempt", "checkpoint", "drained", "completed_at", "behind", "exact", "violations"))
    return {"home": home} | nothing | {"checkpoint": checkpoint}


def _behind(manifest: Manifest | None, blocked: BlockedPublication | None) -> list[SinkName] | None:
    return None if manifest is None else sorted({*manifest.sinks_behind, *(blocked.held if blocked else ())})


def _blocked(blocked: BlockedPublication | None) -> dict[str, Any] | None:
    if blocked is None:
        return None
    return {"waiting": list(blocked.waiting), "since": blocked.since.isoformat(), "summary": blocked.summary}


def _results(sinks: Mapping[SinkName, SinkResult]) -> dict[str, Any]:
    return {name: {"table": sink.table, "version": sink.version, "rows": sink.rows} for name, sink in sinks.items()}
