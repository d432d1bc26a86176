"""The replacements for Spark, threads, clocks and the operating system in a world. All other code is the product's own."""

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import tenacity.nap

from spark_jobs.checkpoint import named_files, savepoint, savepoint_files
from spark_jobs.control import checkpoint_requests, losses, old_starts
from spark_jobs.control.lease import AttemptLease
from spark_jobs.home import savepoint_place
from spark_jobs.protocol import codec, ids
from spark_jobs.protocol.documents import StageState
from spark_jobs.protocol.errors import HomeInUseError
from spark_jobs.publication import delta_rs, holds, staged_files
from spark_jobs.runtime import application, round_run, running_pipeline, start_planner
from spark_jobs.runtime.checkpoints import (
    answers,
    blocked_publication,
    checkpoint_try,
    exports,
    publishing,
    requested_checkpoints,
    try_history,
)
from spark_jobs.runtime.checkpoints.requested_checkpoints import RequestedCheckpoints
from spark_jobs.runtime.driver.cancellation import Cancellation
from spark_jobs.runtime.planned_pipeline import PlannedPipeline
from spark_jobs.runtime.spark.plan import BatchFacts
from spark_jobs.runtime.staged import private_log
from spark_jobs.runtime.stages import gate, passing_over, running_stage, stage, stage_query, staging
from spark_jobs.runtime.start import attempt, early_copy, heal, restore
from spark_jobs.runtime.state import pinning
from spark_jobs.storage import open as open_storage
from tests.simulation.stages import Site, TableDirectory, build_stage
from tests.simulation.storage import SimulatedFiles
from tests.simulation.threads import SimulatedFuture, SimulatedLock, datetime_in, holding, threading_in, time_in

_LOOK_EVERY_S = 2.0
_BACK_OFF_S = 0.2


class _Heartbeat:
    """Reports stops and blocked publications to the world, and ignores everything else."""

    def __init__(self, site: Site, *_: object, **__: object) -> None:
        self.stop = site.told
        self.blocked = site.tell_blocked
        self.status = SimpleNamespace(stages=defaultdict(lambda: SimpleNamespace(state=StageState.RUNNING, restarts=0)))

    def __enter__(self) -> "_Heartbeat":
        return self

    def __exit__(self, *_: object) -> None: ...

    def __getattr__(self, name: str) -> Any:
        return lambda *_: None


class _Tombstones:
    """Replaces the tombstones: no sink of the simulation has deletes."""

    def __init__(self, *_: object) -> None: ...

    def remembered_by(self, *_: object) -> bool:
        return False

    def inherit(self, *_: object) -> None: ...


def _cancellation(site: Site) -> type[Cancellation]:
    class Looking(Cancellation):
        """Looks for a cancellation when it is asked, now and then. It has no thread."""

        _looked_s = 0.0

        def __init__(self, owners: AttemptLease, interval_s: float) -> None:
            super().__init__(owners, interval_s=interval_s)

        def __enter__(self) -> Cancellation:
            self._look()
            return self

        def __exit__(self, *_: object) -> None: ...

        def check(self) -> None:
            if site.world.clock_s >= self._looked_s + _LOOK_EVERY_S:
                self._looked_s = site.world.clock_s
                self._look()
            super().check()

    return Looking


def _opener(site: Site) -> Callable[[str], SimulatedFiles]:
    return lambda url: site.files(url.removeprefix("file://"))


def _at_once(work: Callable[[], object]) -> AbstractContextManager[None]:
    """Replaces :func:`~spark_jobs.background.beside`: the work has ended when the context opens."""
    work()
    return nullcontext()


def _in_use() -> HomeInUseError:
    return HomeInUseError("Another driver is at work.", safe="This start has changed nothing.", remedy="Wait for it.")


@contextmanager
def simulated(site: Site) -> Iterator[pytest.MonkeyPatch]:
    """Runs the product in a world while the context is open. The body of this function lists each replacement."""
    world = site.world
    threading, time = threading_in(world), time_in(world)

    def host() -> str:
        return "the test" if world.current is None else world.current.process.host.name

    def boot() -> str:
        return "" if world.current is None else f"{host()}-{world.current.process.host.boot}"

    replaced: list[tuple[Any, str, Any]] = [
        # time, chance and threads
        *((module, "threading", threading) for module in (gate, running_pipeline, running_stage)),
        *(
            (module, "time", time)
            for module in (blocked_publication, checkpoint_try, running_pipeline, running_stage, try_history)
        ),
        (tenacity.nap, "time", SimpleNamespace(sleep=lambda _: world.sleep(_BACK_OFF_S))),  # a drawn time, from another seed
        *(
            (module, "run_all", lambda jobs, *_: [job() for job in jobs])
            for module in (heal, named_files, pinning, restore, savepoint)
        ),
        *((module, "run_in_background", partial(SimulatedFuture, world)) for module in (answers, publishing)),
        (checkpoint_try, "run_watched", lambda work, meanwhile: work()),
        *(
            (module, "run_with_deadline", lambda work, *_: work())
            for module in (checkpoint_try, exports, running_pipeline, try_history)
        ),
        *((module, "uuid4", world.uuid4) for module in (codec, delta_rs, ids, open_storage)),
        (private_log, "Lock", lambda: SimulatedLock(world)),
        *(
            (module, "datetime", datetime_in(world))
            for module in (blocked_publication, checkpoint_try, holds, losses, requested_checkpoints, round_run)
        ),
        (running_pipeline, "RequestedCheckpoints", partial(RequestedCheckpoints, now_s=time.monotonic)),
        # the operating system: hosts, their locks, the driver's own log
        (attempt, "boot_id", boot),
        (attempt, "os", SimpleNamespace(getpid=lambda: 1)),
        (attempt, "socket", SimpleNamespace(gethostname=host)),
        (early_copy, "socket", SimpleNamespace(gethostname=host)),
        (application, "beside", _at_once),
        (application, "driver_lock", lambda home, request: holding(world, "driver", _in_use)),
        (application, "jvm_lock", lambda home, spark: SimpleNamespace(release=lambda: None)),
        (application, "driver_log", lambda *_: nullcontext()),
        (application, "bounded_outputs", lambda *_: nullcontext()),
        (application, "Cancellation", _cancellation(site)),
        (application, "Heartbeat", partial(_Heartbeat, site)),
        (savepoint_place, "open_place", _opener(site)),
        *((module, "table_files", _opener(site)) for module in (savepoint, savepoint_files)),
        (staged_files, "table_files", lambda uri: TableDirectory(site.disk, uri.removeprefix("file://"))),
        (old_starts, "STARTS_KEPT", 2),  # no schedule has a hundred attempts
        (checkpoint_requests, "driver_at_work", lambda files: True),
        # Spark and Delta
        (application, "check_shared", lambda *_: None),
        *((module, "session_for_run", lambda spark: spark) for module in (application, start_planner)),
        (application, "Tombstones", _Tombstones),
        (start_planner, "plan_pipeline", lambda *_: PlannedPipeline({}, {})),
        (start_planner, "check_stages", lambda *_: None),
        (start_planner, "find_sources", lambda *_, **__: {}),
        (running_stage, "application_has_ended", lambda spark: False),
        *(
            (module, "QuietQueries", SimpleNamespace(during=lambda session: nullcontext()))
            for module in (passing_over, stage_query)
        ),
        (staging, "DeltaJvm", lambda session: SimpleNamespace(write_files=site.write_files)),
        (staging, "batch_facts", lambda query: BatchFacts({}, 0)),
        (staging, "rows_read", lambda query: 0),
        (stage, "left_in_state", lambda *_, **__: ({}, [])),
        (staging, "fit", lambda frame, schema: frame),
        *((module, "build_stage", partial(build_stage, site)) for module in (round_run,)),
        (round_run, "publications_of", lambda spark: nullcontext()),
        (delta_rs, "log_of", site.tables.log_of),
        (delta_rs, "DeltaTable", site.tables.open),
    ]
    with ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        for owner, name, stand_in in replaced:
            patch.setattr(owner, name, stand_in)
        yield patch
