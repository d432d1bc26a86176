"""The promises about requests for checkpoints, savepoints and stops. They are computed from the files when these are created."""

import json
from hashlib import sha256
from typing import Any

from spark_jobs.protocol.checkpoint_requests import Wanted
from spark_jobs.protocol.documents import StopStatus
from spark_jobs.protocol.states import StopState
from tests.simulation.promises import HOME, Kept, Promises
from tests.simulation.stages import Site
from tests.simulation.storage import Watcher


class StopPromises(Watcher):
    """Watches requests, answers and the checkpoints of stops.

    Args:
        site: The world.
        promises: The known checkpoints and tables.
    """

    def __init__(self, site: Site, promises: Promises) -> None:
        self._site, self._promises = site, promises
        self.requests: dict[str, dict[str, Any]] = {}
        self.answers: dict[str, dict[str, Any]] = {}
        self.stops: dict[str, Kept] = {}
        """For each request: the checkpoint with which the pipeline was stopped."""
        self._on_their_way: set[str] = set()
        """Requests whose failure was reported by an attempt that was live when it sent the answer."""
        self._read: dict[str, int] = {}
        """For each drain: the number of rows that the live attempt had read at the time of the request."""
        promises.also.append(self)
        site.told = self.told

    def created(self, path: str, data: bytes) -> None:
        directory, _, name = path.removeprefix(f"{HOME}/").partition("/")
        if directory == "requests" and name.partition("-")[0] in set(Wanted):
            self._asked(json.loads(data)["body"])
        if directory == "answers" and name.removesuffix(".json") in self.requests:
            self._answered(json.loads(data)["body"])
        if directory == "manifests":
            self._completed(self._promises.manifests[json.loads(data)["body"]["checkpoint"]])

    def told(self, status: StopStatus) -> None:
        """Checks that a stop is reported as over only after its answer."""
        if status.state is StopState.STOPPED:
            self._promises.counts["stopped"] += 1
            if status.request not in self.answers:
                self._break(f"{status.request} is told to be over, and is not answered")

    def open(self) -> set[str]:
        """Returns the requests without an answer."""
        return self.requests.keys() - self.answers.keys()

    def _asked(self, body: dict[str, Any]) -> None:
        self.requests[body["request"]] = body
        if body["drain"]:
            self._read[body["request"]] = self._rows_read()

    def _answered(self, body: dict[str, Any]) -> None:
        name = body["request"]
        asked = self.requests[name]
        if name in self.answers:
            self._break(f"{name} is answered again")
        self.answers[name] = body
        if body["error"] is not None:
            self._rejected(asked, body)
            return
        kept = self._promises.manifests.get(body["checkpoint"])
        if kept is None:
            self._break(f"{name} is answered with checkpoint {body['checkpoint']}, which is not there")
            return
        self._promises.counts[f"answered: {asked['wanted']}{', drained' if body['drained'] else ''}"] += 1
        has_ended = kept.kind == "final" and kept.drained >= asked["drain"]
        if (
            asked["wanted"] == "stop"
            and not has_ended
            and (kept.kind, kept.request, kept.drained) != ("stop", name, asked["drain"])
        ):
            self._break(f"{name} is answered with a checkpoint that is of {kept.kind} {kept.request}, drained {kept.drained}")
        if body["blocked"] is not None:
            self._promises.counts["answered: blocked"] += 1
        is_told = body["blocked"] is not None and not asked["drain"]
        if asked["wanted"] == "stop" and kept.by_policy and not (is_told or self._promises.is_public(kept)):
            self._break(f"{name} is answered before checkpoint {kept.number} is public")
        if asked["wanted"] != "checkpoint":
            self._check_savepoint(name, kept, body["savepoint"])

    def _rejected(self, asked: dict[str, Any], answer: dict[str, Any]) -> None:
        error = answer["error"]
        name, winner = asked["request"], error["evidence"].get("winner")
        self._promises.counts[f"turned down: {error['error']}"] += 1
        if self._is_on_its_way(answer["attempt"]):
            self._on_their_way.add(name)
        elif name in self.stops:
            self._break(f"{name} is told that it has failed ({error['failed']}), and has stopped the pipeline")
        if winner is not None:
            self._promises.counts["told the winner"] += 1
            if winner == name or winner not in self.requests:
                self._break(f"{name} is told that {winner} was first, which nobody has asked for")

    def _is_on_its_way(self, attempt: int) -> bool:
        """Returns True if the attempt was live when it sent the answer, judged by its last look, and is fenced when the answer arrives.

        No attempt can take this answer back: the live attempt may still do the action that the answer reports as failed.
        """
        world = self._site.world
        if attempt >= max(self._promises.attempts) and world.current is not None:
            return False
        self._promises.counts["answers on their way"] += 1
        if world.current is None:
            return True
        name = f"{world.current.name}: "
        own = [
            line for line in world.trace[-5_000:] if line.startswith(name) and " before " not in line
        ]  # actions of the actor itself
        return "list attempts" in own[-2]

    def _completed(self, kept: Kept) -> None:
        for before in self._promises.chain(kept)[1:]:
            if before.kind == "stop" and before.request not in self.answers:
                self._break(f"checkpoint {kept.number} continues {before.number}, and its stop {before.request} is not answered")
        if kept.kind != "stop":
            return
        assert kept.request is not None
        if kept.request in self.stops:
            self._break(f"{kept.request} has stopped the pipeline twice")
        if kept.request in self.answers and kept.request not in self._on_their_way:
            self._break(f"{kept.request} stops the pipeline after its answer: {self.answers[kept.request]['error']}")
        self.stops[kept.request] = kept
        if kept.read < self._read.get(kept.request, 0):
            self._break(f"{kept.request} drains {kept.read} rows; when it was asked for {self._read[kept.request]} had been read")

    def _check_savepoint(self, name: str, kept: Kept, url: str) -> None:
        path = url.removeprefix("file://")
        data = self._site.disk.get(f"{path}/savepoint.json")
        found = json.loads(data)["body"] if data else {"files": [], "checkpoint": None}
        wrong = [file["path"] for file in found["files"] if self._sha256(f"{path}/{file['path']}") != file["sha256"]]
        aligned = kept.aligned or kept.ends  # rows may wait before a stage that begins when others have ended
        if found["checkpoint"] != kept.number or not aligned or wrong:
            self._break(
                f"the savepoint of {name} is not whole: it has checkpoint {found['checkpoint']}, and {wrong} are not right"
            )

    def _sha256(self, path: str) -> str | None:
        data = self._site.disk.get(path)
        return None if data is None else sha256(data).hexdigest()

    def _rows_read(self) -> int:
        """Returns the number of rows that the newest attempt has read and committed."""
        disk = self._site.disk
        if not self._promises.attempts:
            return 0
        attempt = json.loads(disk.get(f"{HOME}/attempts/{max(self._promises.attempts)}.json") or b"")["body"]
        log = f"{HOME}/{attempt['work_directory']['path']}/stages/copied/checkpoint"
        committed = max(map(int, disk.listed(f"{log}/commits")), default=None)
        entry = None if committed is None else disk.get(f"{log}/offsets/{committed}")
        return 0 if entry is None else int(json.loads(entry.decode().split("\n")[2])["reservoirVersion"])

    def _break(self, promise: str) -> None:
        self._promises.break_promise(promise)
