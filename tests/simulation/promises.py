"""The promises that hold at every moment of a schedule. They are computed from the files, never with the product's code."""

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from tests.simulation.delta_tables import SimulatedTable, Version
from tests.simulation.stages import Site
from tests.simulation.storage import Watcher
from tests.simulation.windows import HELD, held_in
from tests.simulation.world import Process, Violation

HOME = "/simulated/home"
CLOSED = 2**63 - 1
_NEVER_CHANGED = (
    "answers/",
    "ended/",
    "runs/",
    "attempts/",
    "checkpoints/",
    "losses/",
    "manifests/",
    "pipeline.json",
    "requests/",
    "responses/",
    "rounds/",
)


@dataclass(frozen=True)
class Kept:
    """A manifest as it was when it was created. It stays known after its deletion."""

    number: int
    parent: int | None
    incarnation: str
    attempt: int
    aligned: bool
    """True if all stages are aligned, also those that were failing."""
    whole: bool
    """True if no stage is marked as behind."""
    added: dict[str, tuple[str, ...]]
    """For each sink: the files that the checkpoint adds."""
    replaces: bool
    named: frozenset[str]
    """The files that a restore from it needs, as paths in the home."""
    in_flight: frozenset[str]
    """The staged files that its channels name."""
    carried: dict[str, tuple[str, ...]]
    """For each sink: the files of earlier checkpoints that are published with it."""
    tables: dict[str, str]
    rows: dict[str, tuple[int, ...]]
    left_out: frozenset[int]
    """The rows that the last stage leaves out: all of them before its cut, and some behind it."""
    kind: str
    drained: bool
    request: str | None
    by_policy: bool
    """True if the attempt that completes it publishes it."""
    at_the_end: frozenset[str]
    """The sinks that a later checkpoint publishes: the last one of its round."""
    by_round: frozenset[str]
    """The sinks that make all rows of a round public together."""
    follows: bool
    """True if every sink is published with each checkpoint."""
    ends: bool
    """True if all inputs end. Then a stage begins when the stages that it reads have ended, and no cut waits for it."""
    completed_s: float
    """The completion time in the manifest."""
    sizes: dict[str, int]
    """For each sink: the bytes that the checkpoint adds."""
    read: int
    """The number of rows of the input that it contains."""
    held: dict[str, int]
    """For each stage: the number of these rows that it holds back."""


@dataclass(frozen=True)
class SimulatedHold:
    """The limits up to which a table that refuses does not hold the others: the time, and the bytes that wait for it."""

    time_s: float
    size_bytes: int | None = None


class Promises(Watcher):
    """Watches a world's disk and tables, and checks every promise.

    Raises:
        Violation: A promise is broken. The operation that breaks it raises the error.
    """

    def __init__(self, site: Site) -> None:
        self._site = site
        self.manifests: dict[int, Kept] = {}
        """The manifests that exist."""
        self.known: dict[tuple[str, int], list[Kept]] = {}
        """Every manifest that ever existed, by incarnation and number."""
        self.broken: list[str] = []
        self.attempts: list[int] = []
        self.incarnations: dict[int, str] = {}
        """The incarnation of each attempt. An attempt that was frozen before it began is created after a later one."""
        self.counts: Counter[str] = Counter()
        self.hold: SimulatedHold | None = None
        """The hold of every table."""
        self.also: list[Watcher] = []
        """Other watchers. Each is called for a created file after this one."""
        self._late: Counter[int] = Counter()
        self._begun: dict[Process, dict[str, Any]] = {}
        """For each driver: its attempt."""
        self._alone: dict[str, set[tuple[str, int]]] = {}
        """For each incarnation: the tables, with each checkpoint that one version of a table shows alone."""
        self._shown: dict[str, int] = {}
        """For each incarnation: the newest checkpoint that all tables show alone."""
        self._ahead: Counter[tuple[Process, str]] = Counter()
        """For each driver and table: the publications since the driver reported that another table refuses."""
        site.disk.watcher = self

    def check(self) -> None:
        """Raises the violations found so far. The code that broke a promise may have caught the first error."""
        if self.broken:
            raise Violation("; ".join(self.broken))

    def created(self, path: str, data: bytes) -> None:
        if table := self._site.tables.by_path.get(path.partition("/_delta_log/")[0]):
            self.committed(table)
        if not path.startswith(f"{HOME}/"):
            return
        parts = path.removeprefix(f"{HOME}/").split("/")
        if parts[0] == "attempts" and parts[1].removesuffix(".json").isdecimal():
            self.attempts.append(int(parts[1].removesuffix(".json")))
            body = json.loads(data)["body"]
            self.incarnations[body["attempt"]] = body["incarnation"]
            if self._site.world.current is not None:  # otherwise it is unknown which attempt is live
                self._begun[self._site.world.current.process] = body
        if parts[0] == "work" and parts[-2] == "_delta_log":
            self._check_begin_is_public()
        if parts[0] == "responses" and parts[1].startswith("start-"):
            self._check_answer(json.loads(data)["body"])
        if parts[0] == "manifests":
            self._completed(json.loads(data)["body"])
        for watcher in self.also:
            watcher.created(path, data)

    def _check_answer(self, body: dict[str, Any]) -> None:
        """Checks that a successful run has published its checkpoint if it is due, or reports that the publication is blocked."""
        kept = self.manifests.get(body["checkpoint"]) if body["error"] is None and body["blocked"] is None else None
        if kept is not None and kept.by_policy and not self.is_public(kept):
            self.break_promise(f"a run has succeeded with checkpoint {kept.number}, which is not public")

    def _check_begin_is_public(self) -> None:
        """Checks that the restored checkpoint is public before an attempt stages rows, unless the driver reports a blocked publication."""
        actor = self._site.world.current
        attempt = self._begun.get(actor.process) if actor else None
        if actor is None or attempt is None or attempt["restored_from"] is None or actor.process in self._site.blocked:
            return
        kept = self.known[attempt["incarnation"], attempt["restored_from"]][-1]
        if kept.by_policy and not self.is_public(kept):
            self.break_promise(f"attempt {attempt['attempt']} stages a batch, and checkpoint {kept.number} is not public")

    def replaced(self, path: str) -> None:
        if path.removeprefix(f"{HOME}/").startswith(_NEVER_CHANGED):
            self.break_promise(f"{path} was changed")

    def deleted(self, path: str) -> None:
        below = path.removeprefix(f"{HOME}/")
        if below.startswith("manifests/"):
            gone = self.manifests.pop(int(below.removeprefix("manifests/").removesuffix(".json")))
            self.counts["discarded"] += 1
            if not self.manifests or gone.number > max(self.manifests):
                self.break_promise(f"the newest checkpoint, {gone.number}, was deleted")
            if self._is_needed(gone):
                self.break_promise(f"checkpoint {gone.number} was deleted before it was public")
            is_shown = gone.number == self._shown.get(gone.incarnation) and not self._shows_later(gone)
            if is_shown and gone.follows and self._is_newest(gone.incarnation):
                self.break_promise(f"checkpoint {gone.number} was deleted, and it is the newest one that all tables show")
        for manifest in self.manifests.values():
            if below in manifest.named and self._is_needed(manifest):
                self.break_promise(f"{below} was deleted, which checkpoint {manifest.number} names")
            if path in self._files(manifest) and self._is_needed(manifest):
                self.break_promise(f"{path} was deleted, which checkpoint {manifest.number} needs")
        for table in self._site.tables.by_path.values():
            if path.startswith(f"{table.path}/") and path.removeprefix(f"{table.path}/") in table.versions[-1].files:
                self.break_promise(f"{path} was deleted, which is public")

    def committed(self, table: SimulatedTable) -> None:
        """Checks that a table shows each row once, and exactly the rows of one checkpoint and the checkpoints before it."""
        version = table.versions[-1]
        assert version.app is not None
        if version.apps[version.app] == CLOSED:
            self.counts["closed"] += 1
            return
        self.counts["published"] += 1
        self._check_waits(table, version.apps[version.app])
        rows = sorted(self.rows(table, version))
        doubled = [row for row, count in Counter(rows).items() if count > 1]
        if doubled:
            self.break_promise(f"{table.path} shows rows {doubled} more than once")
        _, incarnation, sink = version.app.split("/")
        number = version.apps[version.app]
        expected = [self._prefix(kept, sink) for kept in self.known.get((incarnation, number), [])]
        if rows not in expected:
            self.break_promise(f"{table.path} shows {rows} as checkpoint {number}, which holds {expected}")
        if lost := self._lost(rows, self.known.get((incarnation, number), []), sink):
            self.break_promise(f"{table.path} shows {rows}: {lost}")
        self._note_shown(table, incarnation, number)

    def _note_shown(self, table: SimulatedTable, incarnation: str, number: int) -> None:
        """Notes the checkpoint that all tables show, if the live attempt published it."""
        actor = self._site.world.current
        process = actor.process if actor else None
        if process is None or process not in self._begun or not self._is_newest(incarnation):
            return
        kept = self.known[incarnation, number][-1]
        alone = self._alone.setdefault(incarnation, set())
        alone.add((table.path, number))
        if all((path, number) in alone for path in kept.tables.values()) and number > self._shown.get(incarnation, 0):
            self._shown[incarnation] = number

    def _shows_later(self, kept: Kept) -> bool:
        """Returns True if all tables show a later checkpoint.

        Any driver may have published it: the next one publishes before its attempt begins.
        """
        return any(
            all(self._shows_alone(path, f"{later.incarnation}/{sink}", later.number) for sink, path in later.tables.items())
            for later in self.manifests.values()
            if later.incarnation == kept.incarnation and later.number > kept.number
        )

    def _shows_alone(self, table: str, app: str, number: int) -> bool:
        """Returns True if one version of a table shows this checkpoint of an app id and no later one."""
        versions = self._site.tables.by_path[table].versions
        return any(version.app and version.app.endswith(app) and version.apps[version.app] == number for version in versions)

    def _is_newest(self, incarnation: str) -> bool:
        return bool(self.attempts) and self.incarnations[max(self.attempts)] == incarnation

    def _check_waits(self, table: SimulatedTable, number: int) -> None:
        """Checks that no other table gets ahead of a table known to refuse by more than one publication, unless its hold lasts."""
        actor, refusing = self._site.world.current, self._site.tables.refusing
        process = actor.process if actor else None
        refused, refused_s = self._site.tables.refused.get(process, (None, 0.0)) if process else (None, 0.0)
        if process is None or process not in self._site.blocked or refused is None or refused != refusing:
            self._ahead.clear()
            return
        if self.hold_lasts(refused, refused_s, number):
            self.counts["a hold lets others go on"] += 1
            return
        self._ahead[process, table.path] += 1
        if self._ahead[process, table.path] > 1:
            self.break_promise(f"{table.path} goes on, and {refusing} refuses")

    def hold_lasts(self, path: str, refused_s: float, number: int) -> bool:
        """Returns True if the other tables need not wait for a table that refuses checkpoints up to ``number``."""
        if self.hold is None:
            return False
        incarnation = self.incarnations[max(self.incarnations)]
        lines = [kept[-1] for (line, k), kept in sorted(self.known.items()) if line == incarnation and k <= number]
        sinks = [(kept, sink) for kept in lines for sink, table in kept.tables.items() if table == path]
        lacking = [(kept, sink) for kept, sink in sinks if kept.number > self.reached(path, f"{kept.incarnation}/{sink}")]
        due_s = [kept.completed_s for kept, sink in lacking if sink not in kept.at_the_end]
        size_bytes = sum(kept.sizes[sink] for kept, sink in lacking)
        in_time = not due_s or refused_s < min(due_s) + self.hold.time_s
        return in_time and (self.hold.size_bytes is None or size_bytes <= self.hold.size_bytes)

    def rows(self, table: SimulatedTable, version: Version | None = None) -> list[int]:
        """Returns the rows that a reader of a table sees."""
        return self._read(f"{table.path}/{name}" for name in (version or table.versions[-1]).files)

    def shows(self, table: SimulatedTable, incarnation: str) -> bool:
        """Returns True if the incarnation made the last publication into the table."""
        commits = [version for version in table.versions if version.app and version.apps[version.app] != CLOSED]
        return bool(commits) and f"/{incarnation}/" in str(commits[-1].app)

    def held(self, kept: Kept, sink: str) -> list[int]:
        """Returns the rows for a sink in a checkpoint and the checkpoints before it."""
        return self._prefix(kept, sink)

    def chain(self, kept: Kept) -> list[Kept]:
        """Returns a checkpoint and the earlier checkpoints of its incarnation, newest first."""
        found = [kept]
        while found[-1].parent is not None:
            before = self.known.get((kept.incarnation, found[-1].parent))
            if not before:
                break
            found.append(before[0])
        return found

    def _prefix(self, kept: Kept, sink: str) -> list[int]:
        return sorted(row for each in self.chain(kept) for row in each.rows.get(sink, ()))

    def _completed(self, body: dict[str, Any]) -> None:
        lines = {sink: self._lines(cut["actions"]["path"]) for sink, cut in body["sinks"].items()}
        policies = {cut["publish"] for cut in body["sinks"].values()}
        ends_round = body["checkpoint_kind"] == "final" or body["drained"]
        ending = "external" not in policies and ends_round
        ends = all(source["bounded"] for source in body["graph"]["sources"].values())
        by_round = {
            sink for sink, cut in body["sinks"].items() if cut["publish"] == "final" or (cut["publish"] == "external" and ends)
        }
        tables = {sink: cut["table"].removeprefix("file://") for sink, cut in body["sinks"].items()}
        added = {sink: tuple(f"{tables[sink]}/{line['add']['path']}" for line in some) for sink, some in lines.items()}
        cuts = body["stages"].values()
        named = {file["stored"] for cut in cuts for file in cut["files"]}
        named |= {cut["channel"]["path"] for cut in cuts if cut["channel"]}
        named |= {cut["actions"]["path"] for cut in body["sinks"].values()}
        carries = {sink: [each["actions"]["path"] for each in cut["carried"]] for sink, cut in body["sinks"].items()}
        named |= {path for paths in carries.values() for path in paths}
        named |= {each["actions"]["path"] for cut in body["sinks"].values() for each in cut["named_before"]}
        channels = [cut["channel"] for cut in cuts if cut["channel"]]
        in_flight = {path for channel in channels for path in self._channel(channel)}
        kept = Kept(
            number=body["checkpoint"],
            parent=body["parent"],
            incarnation=body["incarnation"],
            attempt=body["attempt"],
            aligned=body["aligned"] and (ends or not body["behind"]),
            whole=not body["behind"],
            added=added,
            replaces=any(cut["replace"] for cut in body["sinks"].values()),
            named=frozenset(named),
            in_flight=frozenset(in_flight),
            carried={
                sink: tuple(f"{tables[sink]}/{line['add']['path']}" for path in paths for line in self._lines(path))
                for sink, paths in carries.items()
            },
            tables=tables,
            rows={sink: tuple(self._read(files)) for sink, files in added.items()},
            left_out=frozenset(self._read(f"{tables['copied']}/{loss['unit']['file']}" for loss in body["losses"])),
            kind=body["checkpoint_kind"],
            drained=body["drained"],
            request=body["request"],
            by_policy=ending or policies == {"every_checkpoint"},
            at_the_end=frozenset(() if ends_round else by_round),
            by_round=frozenset(by_round),
            follows=policies == {"every_checkpoint"},
            ends=ends,
            completed_s=datetime.fromisoformat(body["completed_at"]).timestamp(),
            sizes={sink: cut["actions"]["size_bytes"] for sink, cut in body["sinks"].items()},
            read=self._rows_read(body),
            held={name: len(held_in(self._kept_file(cut, "commits") or b"\n{}")) for name, cut in body["stages"].items()},
        )
        self.manifests[kept.number] = kept
        if max(self.manifests) > kept.number:
            self.counts["void"] += 1  # a deleted number was taken again: the higher attempt reports it
            return
        self.known.setdefault((kept.incarnation, kept.number), []).append(kept)
        self.counts["completed"] += 1
        parent = None if kept.parent is None else self.manifests.get(kept.parent)
        if kept.follows and parent is not None and not self.is_public(parent):
            self.counts["completed while the one before is published"] += 1
        self._check_fence(kept)
        self._check_completed(kept, body)

    def _check_fence(self, kept: Kept) -> None:
        if kept.attempt >= max(self.attempts) or self._site.world.current is None:
            return
        self.counts["completed by a fenced attempt"] += 1
        self._late[kept.attempt] += 1
        if self._late[kept.attempt] > 1:
            self.break_promise(f"attempt {kept.attempt} completes checkpoint {kept.number}, its second one since it is fenced")

    def _check_completed(self, kept: Kept, body: dict[str, Any]) -> None:
        gone = [path for path in kept.named if self._site.disk.get(f"{HOME}/{path}") is None]
        gone += [path for path in self._files(kept) if self._site.disk.get(path) is None]
        if gone:
            self.break_promise(f"checkpoint {kept.number} names what is not there: {gone}")
        if kept.parent is not None and (kept.incarnation, kept.parent) not in self.known:
            self.break_promise(f"checkpoint {kept.number} continues {kept.parent}, which never was one of its incarnation")
        prefixes = {sink: self._prefix(kept, sink) for sink in kept.rows}
        for sink, rows in prefixes.items():
            if lost := self._lost(rows, [kept], sink):
                self.break_promise(f"checkpoint {kept.number} holds {rows} for {sink}: {lost}")
        self._check_carried(kept, body)
        if (counted := sum(loss["rows"] for loss in body["losses"])) != len(kept.left_out):
            self.break_promise(
                f"checkpoint {kept.number} has {counted} rows in the ledger, and its files have {len(kept.left_out)}"
            )
        if self._site.windows:
            self._check_held(kept)
            return
        counts = [len(prefixes[sink]) for sink in ("copied", "again")]
        if kept.left_out:
            self.counts["rows are left out"] += 1
            counts[1] = max(prefixes["again"], default=-1) + 1
            if kept.whole and set(range(counts[1], counts[0])) <= kept.left_out:
                counts[1] = max(counts)  # the manifest does not say which of these the stage has read
        if kept.whole:
            self.counts["no table is behind"] += 1
        if counts[0] < counts[1] or (kept.whole and counts[0] != counts[1]):
            self.break_promise(
                f"checkpoint {kept.number} holds {counts[0]} rows for the first table and {counts[1]} for the second"
            )

    def _lost(self, rows: list[int], checkpoints: list[Kept], sink: str) -> str | None:
        """Returns a description of lost or doubled rows. Returns None if each row is either in the table or in the ledger."""
        left_out = checkpoints[-1].left_out if checkpoints and sink == "again" else frozenset[int]()
        if both := sorted(left_out.intersection(rows)):
            return f"{both} are in the ledger, too"
        gone = sorted(set(range(max(rows, default=-1) + 1)) - left_out - set(rows))
        return f"{gone} are lost" if gone else None

    def _check_carried(self, kept: Kept, body: dict[str, Any]) -> None:
        """Checks that one manifest accounts for a whole round: the rows that it adds, the rows that it carries, and the public rows.

        A table that has refused the end of an earlier round may have received it since. Its rows are carried, and are not published again.
        """
        for sink in sorted(kept.carried.keys() & kept.by_round):
            table = self._site.tables.by_path[kept.tables[sink]]
            reached = self.reached(kept.tables[sink], f"{kept.incarnation}/{sink}")
            carried = [each["actions"]["path"] for each in body["sinks"][sink]["carried"] if each["last"] > reached]
            files = [f"{kept.tables[sink]}/{line['add']['path']}" for path in carried for line in self._lines(path)]
            public = self.rows(table) if 0 < reached < CLOSED else []
            rows = sorted([*self._read(files), *kept.rows[sink], *public])
            if reached < kept.number and rows != self._prefix(kept, sink):
                self.break_promise(f"checkpoint {kept.number} has {rows} for {sink}, with what is public and what it carries")

    def _lines(self, path: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self._site.disk.get(f"{HOME}/{path}") or b"").splitlines()]

    def _check_held(self, kept: Kept) -> None:
        """Checks that each row is in a table, or held back by one stage.

        After a drain no stage holds rows back. Otherwise each stage does as long as a row is open.
        """
        first, last = (len(self._prefix(kept, sink)) for sink in ("copied", "again"))
        behind, name = sum(kept.held.values()), f"checkpoint {kept.number}"
        if kept.read != first + kept.held["copied"] or kept.read < last + behind:
            self.break_promise(f"{name} holds {first} and {last} rows of {kept.read}, and {kept.held} are held back")
        if kept.whole and kept.read != last + behind:
            self.break_promise(f"{name} says that no stage is behind, and has {kept.read - last - behind} rows in flight")
        if kept.drained and behind:
            self.break_promise(f"{name} is drained, and {kept.held} are held back")
        if not kept.drained and (first > max(kept.read - HELD, 0) or last > max(first - HELD * (len(kept.held) - 1), 0)):
            self.break_promise(f"{name} is not drained, and {first} and {last} rows of {kept.read} have been handed on")

    def _kept_file(self, cut: dict[str, Any], log: str) -> bytes | None:
        """Returns the file that a checkpoint keeps of the last batch of a stage."""
        stored = {file["path"]: file["stored"] for file in cut["files"]}.get(f"{log}/{cut['batch']}")
        return None if stored is None else self._site.disk.get(f"{HOME}/{stored}")

    def _rows_read(self, body: dict[str, Any]) -> int:
        data = self._kept_file(body["stages"]["copied"], "offsets")
        return 0 if data is None else int(json.loads(data.decode().split("\n")[2])["reservoirVersion"])

    def _channel(self, channel: dict[str, Any]) -> Iterable[str]:
        """Returns the files that a restore reads again. The channel names earlier batches only for the batches that follow them."""
        lines = (self._site.disk.get(f"{HOME}/{channel['path']}") or b"").splitlines()
        staged_in = channel["staged_in"].removeprefix("file://")
        batches = [line for line in map(json.loads, lines) if line["batch"] >= channel["first"]]
        return (f"{staged_in}/{add['path']}" for line in batches for add in line["adds"])

    def _files(self, kept: Kept) -> Iterable[str]:
        staged = [*kept.added.values(), *kept.carried.values()]
        return (*(path for files in staged for path in files), *kept.in_flight)

    def is_public(self, kept: Kept) -> bool:
        """Returns True if every table has reached a checkpoint."""
        return all(self.reached(path, f"{kept.incarnation}/{sink}") >= kept.number for sink, path in kept.tables.items())

    def _is_needed(self, kept: Kept) -> bool:
        """Returns True if a restore needs the checkpoint, or a table still lacks it. Returns False once its incarnation is closed."""
        reached = {sink: self.reached(path, f"{kept.incarnation}/{sink}") for sink, path in kept.tables.items()}
        if all(version == CLOSED for version in reached.values()):
            return False
        lacking = {sink for sink, version in reached.items() if version < kept.number}
        if kept.kind != "final" and not kept.drained:  # otherwise it is the last checkpoint of its round
            lacking -= kept.by_round
        return kept.number >= max(self.manifests, default=0) or bool(lacking)

    def reached(self, table: str, app: str) -> int:
        """Returns the newest checkpoint of an app id that a table contains."""
        apps = self._site.tables.by_path[table].versions[-1].apps
        return next((version for name, version in apps.items() if name.endswith(app)), 0)

    def _read(self, paths: Iterable[str]) -> list[int]:
        found: list[int] = []
        for path in paths:
            data = self._site.disk.get(path)
            if data is None:
                self.break_promise(f"{path} is named and is not there")
            else:
                found += json.loads(data)
        return found

    def break_promise(self, promise: str) -> None:
        """Ends the schedule with a violation, even if the running code catches all errors."""
        self.broken.append(promise)
        self._site.world.trace.append(f"BROKEN: {promise}")
