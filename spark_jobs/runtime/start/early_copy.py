"""Copies a checkpoint's state from a store while the start that continues from it is planned.

A start knows after a few reads which checkpoint it goes on from. Spark, the tables and the sources take it seconds longer, and so does a
large state. So both happen at the same time.

Invariants:

1. The copy goes into a new work directory. No document names it before the attempt begins. Its first file has the number of the attempt: an
   attempt that was cut off and goes on does not delete it.
2. A start that is refused deletes the directory. If a start dies, the next ones treat the directory as they treat any old one.
3. An error of the copy is no error of the start. The restore then copies everything itself, and reports its own error.
"""

import logging
import socket
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import suppress
from threading import Event
from typing import Self

from spark_jobs.background import run_in_background
from spark_jobs.protocol.documents import AttemptDocument, Manifest
from spark_jobs.protocol.errors import StreamPipelineError
from spark_jobs.protocol.ids import AttemptNumber, StageName
from spark_jobs.protocol.start_requests import StartRequest
from spark_jobs.runtime.start.attempt import local_copies, why_not_continued
from spark_jobs.runtime.start.decision import BeginIncarnation, HomeFacts, StartDecision, goes_on_from
from spark_jobs.runtime.start.restore import NOTHING_COPIED, Restored, copy_state
from spark_jobs.runtime.start.work_directory import new_work_directory
from spark_jobs.storage.files import Files, is_mounted

_LOG = logging.getLogger(__name__)
_NO_ATTEMPT = AttemptNumber(0)


def early_copy(
    home: Files,
    request: StartRequest,
    decision: StartDecision,
    facts: HomeFacts,
    *,
    second_copy: bool,
) -> "EarlyCopy":
    """Returns the copy for a start. Nothing is copied unless the start builds a work directory from a checkpoint in a store.

    Args:
        home: The home.
        request: Start request.
        decision: Decision for the request.
        facts: Past of the home.
        second_copy: True if the work directory must share no file with the home.
    """
    is_new = isinstance(decision, BeginIncarnation) or decision.parent is None
    parent = None if is_new else goes_on_from(decision, facts)
    if parent is None or is_mounted(home) or why_not_continued(home, request, facts) is None:
        return EarlyCopy(home)
    return EarlyCopy(home, parent, request.attempt, facts.newest_attempt, second_copy=second_copy)


class EarlyCopy:
    """The state of a checkpoint in a new work directory. The copy runs in the background from the beginning of the context.

    Args:
        home: The home.
        parent: The checkpoint. None: nothing is copied.
        attempt: The attempt that will begin.
        before: The newest attempt.
        second_copy: True if the work directory must share no file with the home.
    """

    def __init__(
        self,
        home: Files,
        parent: Manifest | None = None,
        attempt: AttemptNumber = _NO_ATTEMPT,
        before: AttemptDocument | None = None,
        *,
        second_copy: bool = False,
    ) -> None:
        self._home, self._parent, self._attempt, self._before = home, parent, attempt, before
        self._second_copy = second_copy
        self.directory = new_work_directory(socket.gethostname())
        """The new work directory."""
        self._given_up = Event()
        self._end: Future[None] | None = None
        self._copied = NOTHING_COPIED
        self._error: Exception | None = None
        self._is_settled = False
        """True if a restore uses the copy, or it was deleted."""

    def __enter__(self) -> Self:
        if self._parent is not None:
            self._end = run_in_background(self._copy)
        return self

    def __exit__(self, *_: object) -> None:
        """Deletes what was copied, unless a restore has used it."""
        if self._end is not None and not self._is_settled:
            try:
                self._discard()
            except StreamPipelineError as error:  # the start has its own answer
                _LOG.warning("%s could not be deleted: %s", self.directory.path, error)

    def copied(self, attempt: AttemptDocument, parent: Manifest) -> Mapping[StageName, Restored]:
        """Waits for the copy. From now on it belongs to the attempt.

        Args:
            attempt: The attempt, which builds its work directory.
            parent: The checkpoint that it goes on from.

        Returns:
            The origin of the files by stage; empty if the restore copies everything itself.
        """
        if self._end is None or attempt.work_directory != self.directory:
            return NOTHING_COPIED
        if parent == self._parent:
            self._end.result()
            if self._error is None:
                self._is_settled = True
                return self._copied
            _LOG.warning("the state of checkpoint %d could not be copied early: %s", parent.checkpoint, self._error)
        self._discard()
        return NOTHING_COPIED

    def _discard(self) -> None:
        assert self._end is not None
        self._is_settled = True
        self._given_up.set()
        self._end.result()
        self._home.delete(self.directory.path)

    def _copy(self) -> None:
        assert self._parent is not None
        work = self._home.below(self.directory.path)
        try:
            local = local_copies(self._home, self._before, self.directory)
            self._copied = copy_state(
                self._home, self._parent, work, self._attempt, local, self._check, second_copy=self._second_copy
            )
        except Exception as error:  # noqa: BLE001 - a thread's edge: the restore copies everything itself
            self._error = error
            with suppress(StreamPipelineError):  # the next attempt deletes it
                self._home.delete(self.directory.path)

    def _check(self) -> None:
        if self._given_up.is_set():
            raise _GivenUpError


class _GivenUpError(Exception):
    """Ends a copy that is not needed any more."""
