"""An error of the operating system at each operation: the contents are old or new, never a mix, and the repeated call succeeds."""

import errno
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from spark_jobs.protocol.errors import (
    AccessDeniedError,
    OutcomeUnknownError,
    StorageError,
    StorageFullError,
    StreamPipelineError,
)
from spark_jobs.storage.local import LocalFiles
from tests.support.systems import FaultSystem, every_fault, quick

OLD, NEW = b"old contents", b"new, longer contents" * 100
KINDS: dict[int, type[StorageError]] = {
    errno.EIO: StorageError,
    errno.ENOSPC: StorageFullError,
    errno.EACCES: AccessDeniedError,
    errno.EROFS: AccessDeniedError,
}
codes = pytest.mark.parametrize("code", KINDS, ids=lambda code: errno.errorcode[code])

Act = Callable[[LocalFiles], object]
Contents = dict[str, bytes]


@dataclass(frozen=True)
class Case:
    """A call, and the contents that may be seen before and after it."""

    name: str
    act: Act
    before: Contents
    after: Contents
    seen_between: tuple[Contents, ...] = ()
    may_be_unknown: bool = False

    def __str__(self) -> str:
        return self.name


CASES = [
    Case("create", lambda files: files.create("a/new", NEW), {}, {"a/new": NEW}, may_be_unknown=True),
    Case("create_again", lambda files: files.create("a/new", NEW), {"a/new": NEW}, {"a/new": NEW}, may_be_unknown=True),
    Case("replace", lambda files: files.replace("a/status", NEW), {"a/status": OLD}, {"a/status": NEW}),
    Case("replace_nothing", lambda files: files.replace("a/status", NEW), {}, {"a/status": NEW}),
    Case("delete", lambda files: files.delete("a/old"), {"a/old": OLD, "b": NEW}, {"b": NEW}),
    Case(
        "delete_tree",
        lambda files: files.delete("a"),
        {"a/1": OLD, "a/2": NEW, "b": NEW},
        {"b": NEW},
        seen_between=({"a/1": OLD, "b": NEW}, {"a/2": NEW, "b": NEW}),
    ),
    Case("read", lambda files: files.read("a/old"), {"a/old": OLD}, {"a/old": OLD}),
    Case("names", lambda files: files.names("a"), {"a/old": OLD}, {"a/old": OLD}),
    Case("sync", lambda files: files.sync("a/old"), {"a/old": OLD}, {"a/old": OLD}),
]


def _seen(files: LocalFiles) -> Contents:
    return {
        path: files.read(path)
        for top in files.names("")
        for path in ([f"{top}/{name}" for name in files.names(top)] if top == "a" else [top])
    }


def _on_disk(root: Path) -> Contents:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def _error_of(act: Act, files: LocalFiles) -> StreamPipelineError | None:
    try:
        act(files)
    except StreamPipelineError as error:
        return error
    return None


@codes
@pytest.mark.parametrize("lasting", [False, True], ids=["once", "lasting"])
@pytest.mark.parametrize("answer_lost", [False, True], ids=["not_done", "done_but_answer_lost"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_after_an_error_the_contents_are_old_or_new_and_the_repeated_call_succeeds(
    tmp_path: Path, case: Case, code: int, answer_lost: bool, lasting: bool
) -> None:
    for index, system in enumerate(every_fault(code, lasting=lasting, answer_lost=answer_lost)):
        root = tmp_path / str(index)
        for path, data in case.before.items():
            quick(root).create(path, data)

        error = _error_of(case.act, LocalFiles(root, system))

        if error is not None:
            assert system.injected
            assert error.evidence["errno"] == code
            assert type(error) is KINDS[code] or (case.may_be_unknown and type(error) is OutcomeUnknownError)
        assert _seen(quick(root)) in (case.before, case.after, *case.seen_between), system.trace[-1]
        if not lasting and system.injected and not system.trace[index].startswith("unlink"):
            assert list(root.rglob("*.tmp")) == [], "a call that fails clears up behind itself"
        case.act(quick(root))
        assert _on_disk(root) == case.after, "and no unfinished file outlives it"


@codes
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_call_that_returns_after_an_error_has_kept_its_promise(tmp_path: Path, case: Case, code: int) -> None:
    swallowed = set()
    for index, system in enumerate(every_fault(code)):
        root = tmp_path / str(index)
        for path, data in case.before.items():
            quick(root).create(path, data)
        if _error_of(case.act, LocalFiles(root, system)) is None:
            assert _seen(quick(root)) == case.after
            if system.injected:
                swallowed.add(system.trace[index].split()[0])
    allowed = {"listdir"}  # the search for leftovers of earlier crashes ignores errors
    if case.name == "create_again":
        allowed |= {"link"}  # the name is read back after any answer
    if code == errno.EACCES:
        allowed |= {"open", "fsync", "close"}  # we may have no rights above a root that exists
    assert swallowed <= allowed


@codes
def test_an_outcome_is_unknown_only_once_the_name_exists(tmp_path: Path, code: int) -> None:
    unknown = 0
    for index, system in enumerate(every_fault(code)):
        error = _error_of(lambda files: files.create("new", NEW), LocalFiles(tmp_path / str(index), system))
        if error is not None:
            assert isinstance(error, OutcomeUnknownError) == (tmp_path / str(index) / "new").exists(), system.trace[-3:]
            unknown += isinstance(error, OutcomeUnknownError)
    assert unknown >= 3


@codes
def test_an_outcome_is_unknown_if_the_existing_file_cannot_be_read(tmp_path: Path, code: int) -> None:
    unknown = set()
    for index, system in enumerate(every_fault(code)):
        root = tmp_path / str(index)
        quick(root).create("new", NEW)
        if isinstance(_error_of(lambda files: files.create("new", NEW), LocalFiles(root, system)), OutcomeUnknownError):
            unknown.add(system.trace[index].split()[0])
    assert {"open", "read", "close", "unlink", "fsync"} == unknown


def test_the_error_names_a_file_system_without_hard_links_as_the_reason(tmp_path: Path) -> None:
    before = FaultSystem()
    LocalFiles(tmp_path / "probe", before).create("new", NEW)
    link = next(index for index, operation in enumerate(before.trace) if operation.startswith("link"))
    with pytest.raises(AccessDeniedError, match="hard links"):
        LocalFiles(tmp_path / "home", FaultSystem(link, errno.EPERM)).create("new", NEW)
