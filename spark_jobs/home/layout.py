"""The paths of everything in a home, and the meaning of its names.

Names are flat. A document is a file in the directory of its kind, and its name contains everything that it is found by. So one listing
finds the newest attempt, round or checkpoint, and none of them needs a subdirectory.

``docs/reference/formats.md`` describes the layout for readers in other languages.
"""

import re
from collections.abc import Iterable
from hashlib import sha256
from typing import NamedTuple
from uuid import uuid4

from spark_jobs.protocol.ids import (
    AttemptNumber,
    CheckpointId,
    IncarnationId,
    InputName,
    LossId,
    OwnerNumber,
    RequestId,
    RoundNumber,
    RunId,
    SinkName,
    StageName,
    WorkDirectoryId,
    cancel_request_id,
)

PIPELINE = "pipeline.json"
STATUS = "status.json"
SAVEPOINT = "savepoint.json"
"""In a savepoint, not in a home: the document that makes it exist."""
BEGUN_SAVEPOINT = "exporting.json"
"""In a savepoint that is not whole."""
ATTEMPTS = "attempts"
REQUESTS = "requests"
RESPONSES = "responses"
ANSWERS = "answers"
ANSWERED = "answered"
RUNS = "runs"
ENDED = "ended"
ROUNDS = "rounds"
LOSSES = "losses"
MANIFESTS = "manifests"
CHECKPOINTS = "checkpoints"
HISTORY = "history"
STATE = "state"
LOGS = "logs"
CHANNELS = "channels"
TOMBSTONES = "tombstones"
SAVEPOINTS = "savepoints"
WORK = "work"
STAGED = "staged"
"""In a savepoint, not in a home."""

IN_CACHE = frozenset({LOGS, WORK})
"""The directories of a home in a store that are in its cache, not in the store. Those of :data:`WORK` may be in a work root."""
STATE_TRY_PARTS = 3
"""``state/<stage>/<try>``: the directory in which one try at a checkpoint keeps the state files of a stage."""

DRIVER_LOCK = f"{WORK}/driver.lock"
"""Held by the driver's Python process from its first to its last moment."""
JVM_LOCK = f"{WORK}/jvm.lock"
"""Held by the driver's JVM: it can outlive a killed Python process for some seconds and still run a batch."""
SPARK_LOG = f"{WORK}/spark.log"
"""The output of the newest start's JVM; that of the one before, or what was too much, ends in ``.1``."""

_ATTEMPT = re.compile(r"(\d+)\.json")
_BEGUN = re.compile(r"(\d+)\.begun\.json")
_OWNER = re.compile(r"(\d+)\.owner-(\d+)\.json")
_MANIFEST = re.compile(r"(0|[1-9]\d*)\.json", re.ASCII)
_ROUND = re.compile(r"(\d+)\.json")
_LOSS = re.compile(r"((\d+)-(\d+))\.json", re.ASCII)
_OF_LOSS = re.compile(r"(\d+-\d+)\.(accepted|undone|backfilled)\.json", re.ASCII)
_TIDIED = re.compile(r"(\d+)\.tidied-(\w+)\.json")
_START = re.compile(r"start-(\d+)\.json")
_START_OR_CANCEL = re.compile(r"(?:start-(\d+)|cancel-(\d+)-\d+)\.json")
_ANSWERED = re.compile(r"(\d+)\.(.+)\.json")
_NUMBERED = re.compile(r"(\d+)\.(?:[\w-]+\.)?json", re.ASCII)
_OF_RUN = re.compile(r"(\d+)\.([0-9a-f]{16})\.json")
_WORK_DIRECTORY = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_IN_WORK_DIRECTORY = re.compile(rf"{WORK}/(?:{_WORK_DIRECTORY.pattern}|probe-[0-9a-f]{{32}})(?:/|$)")
_OF_CHECKPOINT = re.compile(r"(\d+)\.\w+\.[0-9a-f]{16}\.(?:actions|channel)", re.ASCII)
_OWN_TABLE = re.compile(
    rf"{CHANNELS}/[^/]+/[^/]+|{TOMBSTONES}/[^/]+/[^/]+|{WORK}/[^/]+/stages/[^/]+/log"  # of a home
    rf"|{STAGED}/[^/]+|{TOMBSTONES}/[^/]+"  # of a savepoint
)
_TRY = re.compile(r"(\d+)-(\d+)\.json")
_STATE_TRY = re.compile(r"(\d+)-(\d+)-(\d+)")
_PUBLICATION = re.compile(r"publish-(\d+)(?:\.out|-\d+\.(?:lock|json))", re.ASCII)
_LOG = re.compile(r"(?:driver-)?(\d+)\.(?:log|out)(?:\.\d+)?")


def attempt_path(attempt: AttemptNumber) -> str:
    return f"{ATTEMPTS}/{attempt}.json"


def begun_path(attempt: AttemptNumber) -> str:
    return f"{ATTEMPTS}/{attempt}.begun.json"


def owner_path(attempt: AttemptNumber, owner: OwnerNumber) -> str:
    return f"{ATTEMPTS}/{attempt}.owner-{owner}.json"


def attempt_pin_path(attempt: AttemptNumber, name: InputName) -> str:
    """Returns the path of the pin of an input that holds for one attempt."""
    return f"{ATTEMPTS}/{attempt}.input-{name}.json"


def round_path(number: RoundNumber) -> str:
    return f"{ROUNDS}/{number}.json"


def round_pin_path(number: RoundNumber, name: InputName) -> str:
    """Returns the path of the pin of an input that holds for a round."""
    return f"{ROUNDS}/{number}.input-{name}.json"


def loss_id(number: RoundNumber, loss: int) -> LossId:
    """Returns the id of a loss of a round; losses are numbered from 1 in each round."""
    return LossId(f"{number}-{loss}")


def loss_path(loss: LossId) -> str:
    """Returns the path of the document that records a loss."""
    return f"{LOSSES}/{loss}.json"


def loss_accepted_path(loss: LossId) -> str:
    """Returns the path of the document that says that somebody has accepted a loss."""
    return f"{LOSSES}/{loss}.accepted.json"


def loss_undone_path(loss: LossId) -> str:
    """Returns the path of the document that says that the input of a loss is read again."""
    return f"{LOSSES}/{loss}.undone.json"


def loss_backfilled_path(loss: LossId) -> str:
    """Returns the path of the document that says that the rows of a loss were processed later."""
    return f"{LOSSES}/{loss}.backfilled.json"


def round_tidied_path(number: RoundNumber, name: InputName) -> str:
    """Returns the path of the record that the files of a source were archived or deleted after a round."""
    return f"{ROUNDS}/{number}.tidied-{name}.json"


def request_path(request: RequestId) -> str:
    return f"{REQUESTS}/{request}.json"


def response_path(request: RequestId) -> str:
    """Returns the path of the answer to a start request."""
    return f"{RESPONSES}/{request}.json"


def answer_path(request: RequestId) -> str:
    """Returns the path of the answer to a request for a checkpoint, a savepoint, a stop or a publication."""
    return f"{ANSWERS}/{request}.json"


def answered_path(at_ms: int, request: RequestId) -> str:
    """Returns the path of the entry that says when such a request was answered."""
    return f"{ANSWERED}/{at_ms}.{request}.json"


def run_entry_path(attempt: AttemptNumber, run: RunId) -> str:
    """Returns the path of the entry in the index by run that says a start request may be this run's."""
    return f"{RUNS}/{attempt}.{_key(run)}.json"


def ended_path(attempt: AttemptNumber, run: RunId) -> str:
    """Returns the path of the answer to an old start request, kept for its run."""
    return f"{ENDED}/{attempt}.{_key(run)}.json"


def cancel_path(attempt: AttemptNumber, owner: OwnerNumber) -> str:
    return request_path(cancel_request_id(attempt, owner))


def manifest_path(checkpoint: CheckpointId) -> str:
    return f"{MANIFESTS}/{checkpoint}.json"


def actions_path(checkpoint: CheckpointId, sink: SinkName, sha256: str) -> str:
    return f"{CHECKPOINTS}/{checkpoint}.{sink}.{sha256[:16]}.actions"


def channel_file_path(checkpoint: CheckpointId, stage: StageName, sha256: str) -> str:
    return f"{CHECKPOINTS}/{checkpoint}.{stage}.{sha256[:16]}.channel"


def history_path(checkpoint: CheckpointId, number: int) -> str:
    return f"{HISTORY}/{checkpoint}-{number}.json"


def state_path(stage: StageName, checkpoint: CheckpointId, attempt: AttemptNumber, number: int) -> str:
    """Returns the directory of the state files that a try at a checkpoint keeps of a stage."""
    return f"{STATE}/{stage}/{checkpoint}-{attempt}-{number}"


def changed_code_path(checkpoint: CheckpointId) -> str:
    """Returns the directory of the savepoint that a start of changed code takes of a checkpoint."""
    return f"{SAVEPOINTS}/checkpoint-{checkpoint}"


def savepoint_path(request: RequestId) -> str:
    """Returns the directory of a savepoint whose asker has named no other."""
    return f"{SAVEPOINTS}/{request}"


def work_path(directory: WorkDirectoryId) -> str:
    return f"{WORK}/{directory}"


def work_probe_path() -> str:
    """Returns a new directory in which driver and executors try whether they share work directories."""
    return f"{WORK}/probe-{uuid4().hex}"


def channels_path(incarnation: IncarnationId) -> str:
    """Returns the directory of the tables that stages of an incarnation hand on, and sinks with keys stage in."""
    return f"{CHANNELS}/{incarnation}"


def tombstones_path(incarnation: IncarnationId) -> str:
    """Returns the directory of the deleted keys of an incarnation."""
    return f"{TOMBSTONES}/{incarnation}"


def log_path(attempt: AttemptNumber) -> str:
    """Returns the path of the log of an attempt's driver, as JSON lines."""
    return f"{LOGS}/{attempt}.log"


def output_path(attempt: AttemptNumber) -> str:
    """Returns the path of the output of an attempt's driver. The process that starts the driver opens the file."""
    return f"{LOGS}/driver-{attempt}.out"


def publication_output_path(checkpoint: CheckpointId) -> str:
    """Returns the path of what a process prints that publishes a checkpoint with Spark."""
    return f"{WORK}/publish-{checkpoint}.out"


def publication_lock_path(request: RequestId) -> str:
    """Returns the path of the lock that a process holds while it answers a request for a publication."""
    return f"{WORK}/{request}.lock"


class AttemptNames(NamedTuple):
    """The parts of the names in :data:`ATTEMPTS`."""

    claimed: tuple[AttemptNumber, ...]
    """Ascending."""
    begun: tuple[AttemptNumber, ...]
    """The ones that have begun, ascending."""
    owners: dict[AttemptNumber, OwnerNumber]
    """By attempt, which need not be claimed, its newest owner."""


def attempt_names(names: Iterable[str]) -> AttemptNames:
    """Reads the names in :data:`ATTEMPTS`."""
    names = list(names)
    owners: dict[AttemptNumber, OwnerNumber] = {}
    for found in filter(None, map(_OWNER.fullmatch, names)):
        attempt, owner = AttemptNumber(int(found[1])), OwnerNumber(int(found[2]))
        owners[attempt] = max(owner, owners.get(attempt, owner))
    claimed = sorted(map(AttemptNumber, _numbers(_ATTEMPT, names)))
    begun = set(_numbers(_BEGUN, names))
    return AttemptNames(tuple(claimed), tuple(number for number in claimed if number in begun), owners)


def round_numbers(names: Iterable[str]) -> list[RoundNumber]:
    """Returns the rounds that the names in :data:`ROUNDS` say have begun, ascending."""
    return sorted(map(RoundNumber, _numbers(_ROUND, names)))


def position_of_loss(loss: LossId) -> tuple[RoundNumber, int]:
    """Returns the round that a loss was recorded in, and its number in that."""
    number, _, n = loss.partition("-")
    return RoundNumber(int(number)), int(n)


class LossNames(NamedTuple):
    """The parts of the names in :data:`LOSSES`."""

    recorded: dict[LossId, tuple[RoundNumber, int]]
    """By loss its round and its number in that; ascending."""
    accepted: frozenset[LossId]
    undone: frozenset[LossId]
    backfilled: frozenset[LossId]

    @property
    def closed(self) -> frozenset[LossId]:
        """Returns the losses that are not open any more."""
        return self.accepted | self.undone | self.backfilled

    @property
    def open(self) -> list[LossId]:
        """Returns the open losses, ascending."""
        closed = self.closed
        return [loss for loss in self.recorded if loss not in closed]


def loss_names(names: Iterable[str]) -> LossNames:
    """Reads the names in :data:`LOSSES`."""
    names = list(names)
    numbers = sorted((RoundNumber(int(found[2])), int(found[3])) for found in map(_LOSS.fullmatch, names) if found)
    marked = [(LossId(found[1]), found[2]) for found in map(_OF_LOSS.fullmatch, names) if found]
    by_mark = {mark: frozenset(loss for loss, kind in marked if kind == mark) for mark in ("accepted", "undone", "backfilled")}
    return LossNames({loss_id(*each): each for each in numbers}, **by_mark)


def tidied_inputs(names: Iterable[str], number: RoundNumber) -> list[InputName]:
    """Returns the inputs whose files a round has archived or deleted, by the names in :data:`ROUNDS`; sorted."""
    found = filter(None, map(_TIDIED.fullmatch, names))
    return sorted(InputName(each[2]) for each in found if int(each[1]) == number)


def manifest_numbers(names: Iterable[str]) -> list[CheckpointId]:
    """Returns the numbers that have a manifest, valid or not, by the names in :data:`MANIFESTS`; ascending."""
    return sorted(map(CheckpointId, _numbers(_MANIFEST, names)))


def start_numbers(names: Iterable[str]) -> list[AttemptNumber]:
    """Returns the attempts that start requests, or their answers, are for; ascending."""
    return sorted(map(AttemptNumber, _numbers(_START, names)))


def starts_of_run(names: Iterable[str], run: RunId) -> list[AttemptNumber]:
    """Returns the attempts of a run by the names in :data:`RUNS` or :data:`ENDED`, newest first.

    The names contain only a hash of the run, so the caller has to compare the run in the document.
    """
    found = filter(None, map(_OF_RUN.fullmatch, names))
    return sorted((AttemptNumber(int(each[1])) for each in found if each[2] == _key(run)), reverse=True)


def starts_by_key(names: Iterable[str]) -> list[tuple[AttemptNumber, str, str]]:
    """Returns the attempts that the names in :data:`ENDED` are of, each with the key of its run, and the name."""
    return [(AttemptNumber(int(found[1])), found[2], found[0]) for found in map(_OF_RUN.fullmatch, names) if found]


def attempt_of(name: str) -> AttemptNumber | None:
    """Returns the attempt that a file in :data:`ATTEMPTS`, :data:`RUNS` or :data:`ENDED` is of."""
    found = _NUMBERED.fullmatch(name)
    return found and AttemptNumber(int(found[1]))


def round_of(name: str) -> RoundNumber | None:
    """Returns the round that a file in :data:`ROUNDS` is of."""
    found = _NUMBERED.fullmatch(name)
    return found and RoundNumber(int(found[1]))


def start_of_request(name: str) -> AttemptNumber | None:
    """Returns the attempt that a file in :data:`REQUESTS` or :data:`RESPONSES` starts or cancels."""
    found = _START_OR_CANCEL.fullmatch(name)
    return found and AttemptNumber(int(found[1] or found[2]))


def work_directories(names: Iterable[str]) -> list[WorkDirectoryId]:
    """Returns the work directories among the names in :data:`WORK`."""
    return [WorkDirectoryId(name) for name in names if _WORK_DIRECTORY.fullmatch(name)]


def is_in_work_directory(path: str) -> bool:
    """Returns True if a path is a work directory, a probe of one, or below. The driver's own files are side by side with these."""
    return _IN_WORK_DIRECTORY.match(path) is not None


def is_own_table(directory: str) -> bool:
    """Returns True if a directory of a home or a savepoint is one where the runtime keeps a Delta table of its own."""
    return _OWN_TABLE.fullmatch(directory) is not None


def checkpoint_of(name: str) -> CheckpointId | None:
    """Returns the checkpoint that a file in :data:`CHECKPOINTS` was written for."""
    found = _OF_CHECKPOINT.fullmatch(name)
    return found and CheckpointId(int(found[1]))


def history_tries(names: Iterable[str]) -> list[tuple[CheckpointId, int]]:
    """Returns the tries that :data:`HISTORY` remembers, by checkpoint and number."""
    matches = filter(None, map(_TRY.fullmatch, names))
    return sorted((CheckpointId(int(found[1])), int(found[2])) for found in matches)


class StateTry(NamedTuple):
    """The parts of a directory's name in ``state/<stage>``."""

    checkpoint: CheckpointId
    attempt: AttemptNumber
    number: int


def state_try(name: str) -> StateTry | None:
    """Reads the name of a directory in ``state/<stage>``; None where it is none of a try."""
    found = _STATE_TRY.fullmatch(name)
    return found and StateTry(CheckpointId(int(found[1])), AttemptNumber(int(found[2])), int(found[3]))


def log_attempt(name: str) -> AttemptNumber | None:
    """Returns the attempt that a file in :data:`LOGS` is of."""
    found = _LOG.fullmatch(name)
    return found and AttemptNumber(int(found[1]))


def publication_of(name: str) -> CheckpointId | None:
    """Returns the checkpoint of a publication by the name of its output or lock in :data:`WORK`, or of its request in :data:`REQUESTS`."""
    found = _PUBLICATION.fullmatch(name)
    return found and CheckpointId(int(found[1]))


class AnsweredName(NamedTuple):
    """The parts of a name in :data:`ANSWERED`."""

    at_ms: int
    request: RequestId


def answered_names(names: Iterable[str]) -> list[AnsweredName]:
    """Reads the names in :data:`ANSWERED`, the oldest answer first."""
    matches = filter(None, map(_ANSWERED.fullmatch, names))
    return sorted(AnsweredName(int(found[1]), RequestId(found[2])) for found in matches)


def request_of(name: str) -> RequestId | None:
    """Returns the request that a file in :data:`REQUESTS` is of."""
    return RequestId(name.removesuffix(".json")) if name.endswith(".json") else None


def _key(run: RunId) -> str:
    return sha256(run.encode()).hexdigest()[:16]


def _numbers(pattern: re.Pattern[str], names: Iterable[str]) -> list[int]:
    return [int(found[1]) for found in map(pattern.fullmatch, names) if found]
