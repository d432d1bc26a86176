"""Deletes old starts: requests and answers, attempts, owners, pins, rounds, and settled losses.

Starts are numbered, and the newest :data:`STARTS_KEPT` up to the live attempt are kept completely. The answer to an older start
is kept if it is the newest answer of its run, for the newest :data:`RUNS_KEPT` runs. So the listings of a home are bounded, and a run
that is repeated long afterwards gets the same answer.

Invariants:

1. A process that still waits for an old start gets an answer before the start is deleted.
2. An answer is durable in its new place before it is deleted from the old one. After a crash at any step the next call finishes the work.
3. The request that began the live incarnation stays, and so do the newest round and every round since the oldest kept attempt.
"""

import logging
from functools import partial

from spark_jobs.control.attempts import Attempts
from spark_jobs.control.channel import Channel
from spark_jobs.control.losses import LossLedger
from spark_jobs.home.layout import (
    ATTEMPTS,
    ENDED,
    REQUESTS,
    RESPONSES,
    ROUNDS,
    RUNS,
    attempt_of,
    request_path,
    response_path,
    round_numbers,
    round_of,
    round_path,
    start_of_request,
    starts_by_key,
)
from spark_jobs.protocol.documents import AttemptDocument, RoundDocument
from spark_jobs.protocol.errors import CorruptDocumentError, InterruptedRunError, NotFoundError
from spark_jobs.protocol.ids import AttemptNumber, start_request_id
from spark_jobs.protocol.steps import Step, step
from spark_jobs.storage.files import Files, read_document, side_by_side

_LOG = logging.getLogger(__name__)
STARTS_KEPT = 100
"""The number of newest starts that are kept completely."""
RUNS_KEPT = 1_000
"""The number of newest runs whose newest answer is kept."""


def forget_old_starts(files: Files, live: AttemptDocument) -> None:
    """Deletes all but the newest starts. Idempotent: a repetition after a crash finishes the work.

    Args:
        files: The home.
        live: The live attempt.

    Raises:
        StorageError: Not everything was deleted. Repeat.
    """
    directories = (REQUESTS, RUNS, ATTEMPTS, RESPONSES)
    names = dict(
        zip(directories, side_by_side(files, [partial(files.names, directory) for directory in directories]), strict=True)
    )
    numbered = [*map(start_of_request, names[REQUESTS] + names[RESPONSES]), *map(attempt_of, names[ATTEMPTS] + names[RUNS])]
    last = live.attempt - STARTS_KEPT
    for number in sorted({number for number in numbered if number is not None and number <= last}):
        try:
            _forget(files, AttemptNumber(number), names, live)
        except CorruptDocumentError as error:  # the documents stay for inspection
            _LOG.warning("start %d is not deleted: %s", number, error)
    _forget_rounds(files, [number for number in Attempts(files).numbers() if number > last])
    _forget_answers(files)


def _forget(files: Files, number: AttemptNumber, names: dict[str, list[str]], live: AttemptDocument) -> None:
    request = start_request_id(number)
    if any(attempt_of(name) == number for name in names[RUNS]):  # otherwise an earlier call has kept the answer
        _keep_answer(files, number)
    paths = [f"{RUNS}/{name}" for name in names[RUNS] if attempt_of(name) == number]
    paths += [f"{ATTEMPTS}/{name}" for name in names[ATTEMPTS] if attempt_of(name) == number]
    paths += [f"{REQUESTS}/{name}" for name in names[REQUESTS] if start_of_request(name) == number]
    paths += [response_path(request)]  # after the request, which would otherwise be open
    needed = request_path(live.begun_by or live.request)
    for path in paths:
        if path != needed:
            with step(Step.FORGET):
                files.delete(path)


def _keep_answer(files: Files, number: AttemptNumber) -> None:
    channel, request = Channel(files), start_request_id(number)
    answer = channel.response(request)
    if answer is None:
        try:
            unanswered = channel.request(request)
        except NotFoundError:  # the requester died before writing it, or lost the number to another one
            return
        answer = channel.respond_failure(unanswered, _overtaken(number))
    channel.keep_answer(answer)


def _forget_rounds(files: Files, kept: list[AttemptNumber]) -> None:
    """Deletes the rounds before the round of the oldest kept attempt. An old corrupt attempt that stays for inspection keeps no round."""
    names = files.names(ROUNDS)
    newest = max(round_numbers(names), default=None)
    if newest is None or not kept:
        return
    oldest = min(newest, Attempts(files).read(kept[0]).round)
    LossLedger(files).forget(oldest, needed=read_document(files, round_path(newest), RoundDocument).losses)
    for name in names:
        number = round_of(name)
        if number is not None and number < oldest:
            with step(Step.FORGET):
                files.delete(f"{ROUNDS}/{name}")


def _forget_answers(files: Files) -> None:
    newest_first = sorted(starts_by_key(files.names(ENDED)), reverse=True)
    seen: set[str] = set()
    for _, key, name in newest_first:
        if key in seen or len(seen) >= RUNS_KEPT:
            with step(Step.FORGET):
                files.delete(f"{ENDED}/{name}")
        seen.add(key)


def _overtaken(number: AttemptNumber) -> InterruptedRunError:
    return InterruptedRunError(
        f"Start {number} was never answered, and there were {STARTS_KEPT} later ones.",
        remedy="Run it again.",
        attempt=number,
    )
