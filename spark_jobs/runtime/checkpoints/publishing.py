"""Publishes the checkpoints of a running pipeline while the next ones are taken.

Each sink follows in its own order, in its own thread, and waits for no other. Its missing checkpoints become public in one transaction,
so a slow table skips checkpoints. But readers of several tables need a checkpoint that every table shows. So some checkpoints are common
ones: every table publishes them. When all tables have the common checkpoint, the newest complete one becomes the next common one.

A publication that fails holds all sinks (docs/adr/0025-a-table-that-refuses-blocks-publication.md). Publications that are under way end.
After that, one thread publishes all sinks, starting with the one that is behind, until it succeeds. While the hold of a refusing table
lasts, that thread publishes each checkpoint in all other tables, so that they need no common ones.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from spark_jobs.background import run_in_background
from spark_jobs.protocol.documents import Manifest, Publish
from spark_jobs.protocol.errors import StreamPipelineError
from spark_jobs.protocol.ids import CheckpointId, SinkName
from spark_jobs.publication.holds import may_heal
from spark_jobs.runtime.checkpoints.blocked_publication import Blocking

_LOG = logging.getLogger(__name__)
_NONE = CheckpointId(0)
_CHECK, _ALL = "check", "all sinks"


class Publisher(Protocol):
    """Publishes checkpoints of one attempt. All but :meth:`shown` are called in other threads, and return when they are done."""

    def check(self, manifest: Manifest) -> None:
        """Raises an error if a table refuses a checkpoint, as far as this can be seen before anything is written."""
        ...

    def publish_sink(self, manifest: Manifest, sink: SinkName) -> None:
        """Publishes a checkpoint, and all before it, in one sink."""
        ...

    def publish_all(self, manifest: Manifest) -> None:
        """Publishes a checkpoint, and all before it, in every sink that is due and not held, or records why that is blocked.

        The sink that is behind comes first. Raises an error if the checkpoint can never become public.
        """
        ...

    def shown(self) -> CheckpointId | None:
        """Returns the newest checkpoint of which every table has its own version."""
        ...


class Publishing:
    """Publishes complete checkpoints, in other threads.

    All methods are called by the one thread that takes the checkpoints. None of them waits, except :meth:`rest` and :meth:`end`.

    Args:
        publisher: Publishes the checkpoints.
        blocking: Record of the blocked publication.
        check_live: Raises if a later attempt is live.
        begun_at: The checkpoint that the attempt goes on from. It is public in every sink that is due, unless the publication is blocked.
    """

    def __init__(
        self, publisher: Publisher, blocking: Blocking, check_live: Callable[[], object], begun_at: Manifest | None
    ) -> None:
        self._publisher, self._blocking, self._check_live = publisher, blocking, check_live
        self._reached: dict[SinkName, CheckpointId] = {}
        """The newest checkpoint that this attempt has published or found published, by sink."""
        self._reached_before: Mapping[SinkName, CheckpointId] = {}
        """:attr:`_reached` when the newest check began. The check reads every checkpoint after it."""
        self._own: dict[SinkName, set[CheckpointId]] = {}
        """The checkpoints after :attr:`shown` of which the table has a version, by sink."""
        self._checked: Manifest | None = None
        """The newest checked checkpoint: no table has refused it, so sinks may publish up to it."""
        self._common: Manifest | None = None
        """The checkpoint that every sink publishes next, or has just published."""
        self._tried = _NONE
        """The newest checkpoint that a blocked publication was tried with."""
        self._under_way: dict[str, _Work] = {}
        """Work in other threads, by name."""
        self._refused: Manifest | None = None
        """The first checkpoint whose publication has failed, until one thread publishes all sinks."""
        self._failure: BaseException | None = None
        self._is_resting = False
        self._shown: CheckpointId | None = None
        if begun_at is not None:
            self._mark_published(begun_at)
        if begun_at is not None and self._shown is None:
            self._shown = publisher.shown()

    @property
    def reached(self) -> Mapping[SinkName, CheckpointId]:
        """The newest checkpoint that is known to be public and is not being read, by sink. Sinks without one are left out."""
        return self._reached_before if _CHECK in self._under_way else self._reached

    @property
    def shown(self) -> CheckpointId | None:
        """The newest checkpoint of which every table is known to have its own version."""
        return self._shown

    def is_settled(self, manifest: Manifest) -> bool:
        """Returns True if a checkpoint is public in every sink that is due and not held, or if its publication is blocked."""
        if self._blocking.all_wait:
            return True
        return all(self._reached.get(sink, _NONE) >= manifest.checkpoint for sink in self._not_held(manifest))

    def advance(self, newest: Manifest | None) -> None:
        """Takes the results of ended work and begins work that is due. Call it repeatedly.

        Args:
            newest: The newest checkpoint.

        Raises:
            FencedError: A later attempt is live.
            StreamPipelineError: A checkpoint can never become public, or rows that wait may be deleted soon.
        """
        self._collect_ended()
        if self._failure is not None:
            raise self._failure
        if newest is None or self._is_resting:
            return
        if self._refused is None and not self._blocking.is_blocked and _ALL not in self._under_way:
            self._follow(newest)
        elif not self._under_way:
            self._try_again(newest)

    def rest(self, pause: Callable[[], object]) -> None:
        """Begins no further work, and waits for work that is under way.

        Args:
            pause: Waits a moment. It may call :meth:`advance`.

        Raises:
            StreamPipelineError: See :meth:`advance`.
        """
        self._is_resting = True
        self.advance(None)
        while self._under_way:
            pause()
            self.advance(None)

    def end(self) -> None:
        """Waits for work that is under way, because the attempt ends. Never raises."""
        self._is_resting = True
        for work in self._under_way.values():
            with suppress(Exception):
                work.future.result()

    def _follow(self, newest: Manifest) -> None:
        """Begins a publication in each idle sink that lacks its next checkpoint."""
        sinks = list(_following(newest))
        if sinks and (self._checked is None or self._checked.checkpoint < newest.checkpoint):
            if _CHECK not in self._under_way:
                self._reached_before = dict(self._reached)
            self._begin(_CHECK, newest, partial(self._publisher.check, newest), partial(self._mark_checked, newest))
        for sink in sinks:
            target = self._target(sink)
            if target is not None and sink in target.sinks and self._reached.get(sink, _NONE) < target.checkpoint:
                reached = partial(self._mark_reached, sink, target)
                self._begin(f"sink {sink}", target, partial(self._publisher.publish_sink, target, sink), reached)

    def _target(self, sink: SinkName) -> Manifest | None:
        """Returns the next checkpoint of a sink: the common one, or the newest if the sink has the common one."""
        common, checked = self._common, self._checked
        if common is None or all(self._reached.get(each, _NONE) >= common.checkpoint for each in _following(common)):
            common = self._common = checked
        return common if common is not None and self._reached.get(sink, _NONE) < common.checkpoint else checked

    def _try_again(self, newest: Manifest) -> None:
        if self._refused is not None or self._blocking.is_due() or newest.checkpoint > self._tried:
            tried, self._refused = self._refused or newest, None
            self._tried = tried.checkpoint
            self._begin(_ALL, tried, partial(self._publish_all, tried), partial(self._mark_published, tried))

    def _publish_all(self, manifest: Manifest) -> None:
        self._publisher.publish_all(manifest)
        if self._blocking.is_blocked:
            self._check_live()

    def _begin(self, name: str, manifest: Manifest, work: Callable[[], None], then: Callable[[], None]) -> None:
        """Begins work in another thread, unless work of that name is under way."""
        if name not in self._under_way:
            self._under_way[name] = _Work(manifest, run_in_background(partial(self._watched, work)), then)

    def _watched(self, work: Callable[[], None]) -> None:
        try:
            work()
        except StreamPipelineError:
            self._check_live()  # raises if a later attempt is live, which may have deleted the files
            raise

    def _collect_ended(self) -> None:
        """Takes the results of work that has ended."""
        for name, work in list(self._under_way.items()):
            if work.future.done():
                del self._under_way[name]
                error = work.future.exception()
                if error is None:
                    work.then()
                elif name != _ALL and isinstance(error, StreamPipelineError) and may_heal(error):
                    self._refused = self._refused or work.manifest
                else:
                    self._failure = self._failure or error

    def _mark_checked(self, checked: Manifest) -> None:
        self._checked = checked

    def _mark_reached(self, sink: SinkName, manifest: Manifest) -> None:
        """Records that a sink has its own version of a checkpoint, unless it had a later one before."""
        if self._reached.get(sink, _NONE) > manifest.checkpoint:
            return
        self._reached[sink] = manifest.checkpoint
        self._own.setdefault(sink, set()).add(manifest.checkpoint)
        following = list(_following(manifest))
        if len(following) < len(manifest.sinks):
            return  # the other sinks show other checkpoints
        found = set.intersection(*(self._own.get(each, set()) for each in following))
        if found:
            self._shown = max(found)
            self._own = {each: {number for number in own if number > self._shown} for each, own in self._own.items()}
            _LOG.info("checkpoint %d is public in every sink", self._shown)

    def _mark_published(self, manifest: Manifest) -> None:
        """Records that every sink that is not held has a checkpoint, unless all wait."""
        if not self._blocking.all_wait:
            self._checked = self._common = manifest
            for sink in self._not_held(manifest):
                self._mark_reached(sink, manifest)

    def _not_held(self, manifest: Manifest) -> list[SinkName]:
        return [sink for sink in _following(manifest) if sink not in self._blocking.held]


@dataclass(frozen=True)
class _Work:
    """Work in another thread."""

    manifest: Manifest
    future: Future[None]
    then: Callable[[], None]
    """Called after the work has succeeded."""


def _following(manifest: Manifest) -> Iterator[SinkName]:
    """Returns the sinks that are published with each checkpoint."""
    return (sink for sink, cut in manifest.sinks.items() if cut.publish is Publish.EVERY_CHECKPOINT)
