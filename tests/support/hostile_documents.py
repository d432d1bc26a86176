"""Documents that an attacker has written."""

import json
import os
import random
import signal
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

from spark_jobs.protocol.codec import NESTING_MAX, canonical, sha256
from spark_jobs.protocol.documents import Status

Random = random.Random


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


HOSTILE: tuple[Any, ...] = (
    nested(NESTING_MAX), nested(260), {"a": nested(260)}, 1 << 63, -(1 << 63) - 1, 10**4_000, 1e308, "inf", "nan",
    "9" * 4_000, "x" * 1_000_000, "\x1b[2J", "\u202e", None, True, [], {}, [[]], {"": {}}, 0.5, -1, "2013-13-01T00:00:00Z",
    "9999-12-31T23:59:59-23:59",
)  # fmt: skip


def places(value: Any) -> list[tuple[Any, Any]]:
    """Returns every container of a JSON value with each of its keys."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place for key, each in inner for place in ((value, key), *places(each))]


def sealed(envelope: dict[str, Any]) -> bytes:
    unsealed = {name: value for name, value in envelope.items() if name != "checksum"}
    return canonical(unsealed | {"checksum": sha256(canonical(unsealed))}) + b"\n"


def with_hostile_values(data: bytes, rng: Random) -> bytes:
    envelope = json.loads(data)
    for _ in range(rng.randint(1, 3)):
        container, key = rng.choice(places(envelope))
        container[key] = deepcopy(rng.choice(HOSTILE))  # the next value may be put inside this one
    return sealed(envelope)


def with_a_field_more(data: bytes, rng: Random) -> bytes:
    envelope = json.loads(data)
    container, _ = rng.choice([place for place in places(envelope) if isinstance(place[0], dict)])
    container["later"] = rng.choice(HOSTILE)
    return sealed(envelope)


def truncated(data: bytes, rng: Random) -> bytes:
    return data[: rng.randrange(len(data))]


def with_other_bytes(data: bytes, rng: Random) -> bytes:
    start = rng.randrange(len(data))
    return data[:start] + rng.randbytes(rng.randint(1, 64)) + data[start + rng.randint(0, 64) :]


def raw_text(data: bytes, rng: Random) -> bytes:
    opening = rng.choice([b"[", b'{"a":', b"[{", b"-", b"1e9", b"\\u", b"NaN,", b"\x00", b"\xff"])
    return rng.choice([b"", data[:-2], b'{"body":']) + opening * rng.choice([1, 100, 100_000])


def link(path: Path, rng: Random) -> None:
    path.symlink_to(rng.choice(["/dev/zero", "/etc/passwd", path.name, "/nowhere", "/"]))


def pipe(path: Path, rng: Random) -> None:
    os.mkfifo(path)


def directory(path: Path, rng: Random) -> None:
    path.mkdir()


def sparse(path: Path, rng: Random) -> None:
    with path.open("wb") as stream:
        stream.truncate(rng.choice([17 << 20, 100 << 20, 1 << 40]))


ALTERED: tuple[Callable[[bytes, Random], bytes], ...] = (
    with_hostile_values, with_a_field_more, truncated, with_other_bytes, raw_text,
)  # fmt: skip
REPLACED: tuple[Callable[[Path, Random], None], ...] = (link, pipe, directory, sparse)
MEMORY_FACTOR = 4
"""A reader needs less memory than the limit of a document's kind times this factor."""
HANG_S = 120
"""No reader of one document needs as long. One that still reads then hangs."""


@contextmanager
def in_bounds(max_bytes: int = Status.max_bytes) -> Iterator[None]:
    """Fails if a reader of documents of this limit needs much memory, and ends it if it hangs."""

    def hangs(*_: object) -> None:
        raise AssertionError("A reader hangs.")

    before = signal.signal(signal.SIGALRM, hangs)
    signal.alarm(HANG_S)
    tracemalloc.start()
    try:
        yield
    finally:
        _, peak_bytes = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
        assert peak_bytes < MEMORY_FACTOR * max_bytes  # also after an error
