"""Responses of an object store that have no counterpart in a directory. Shared behaviour is tested in ``tests/contract``."""

import multiprocessing
import os
import socket
import time
from collections.abc import Callable, Generator, Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.queues import Queue
from threading import Thread
from traceback import format_exception
from typing import cast
from urllib.request import Request, urlopen

import pytest

from spark_jobs.protocol.codec import sha256
from spark_jobs.protocol.errors import (
    AccessDeniedError,
    AlreadyExistsError,
    InvalidParameterError,
    MissingRequirementError,
    NotFoundError,
    Retry,
    StorageError,
)
from spark_jobs.storage.files import Files
from spark_jobs.storage.object_store import ObjectStoreFiles
from spark_jobs.storage.open import open_place
from spark_jobs.storage.s3_settings import S3Settings
from spark_jobs.storage.settings_by_bucket import use_settings
from tests.support.memory_files import MemoryFiles
from tests.support.object_store import BUCKET, Requests, object_store


class _Store(ThreadingHTTPServer):
    """An object store that answers as a test configures it."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Requests)
        self.objects: dict[str, bytes] = {}
        self.keeps_the_first = True
        self.always: int | None = None
        self.says = b""
        self.lost_answers = 0
        self.hangs_up = False
        """Whether the store closes the connection before it has read the whole body of a request that it rejects."""
        self.undecided = 0
        self.busy = 0
        self.takes_s = 0.0
        self.moved: list[int] = []
        self.sent_bytes = 0
        self.conditional: list[str] = []
        """The keys of objects that were put on condition that the name is free."""
        self.cut_lines = 0
        """Number of answers of which only a half arrives."""
        self.on_copy: Callable[[str, str], tuple[int, bytes]] = self.copy
        """Answers the request to copy an object to another name."""
        self.has_bucket = True
        self.forgets_what_it_keeps = False
        """Whether another process deletes an object after the store has kept another one from its name."""

    def copy(self, origin: str, key: str) -> tuple[int, bytes]:
        self.objects[key] = self.objects[origin]
        return 200, _COPIED

    def put(self, key: str, data: bytes, if_none: bool) -> int:
        self.sent_bytes += len(data)
        if not self.has_bucket:
            return 404
        if if_none and ".tmp" not in key:
            self.conditional.append(key)
        if self.undecided and if_none and ".tmp" not in key:
            self.undecided -= 1
            return 409
        if self.keeps_the_first and if_none and key in self.objects:
            if self.forgets_what_it_keeps and ".tmp" not in key:
                del self.objects[key]
            return 412
        self.objects[key] = data
        return 200


class _Requests(BaseHTTPRequestHandler):
    server: _Store
    protocol_version = "HTTP/1.1"

    def do_PUT(self) -> None:
        if self.server.hangs_up and self.path in self.server.objects:
            self.close_connection = True  # a response would be lost with the connection
            return
        if origin := self.headers["x-amz-copy-source"]:
            code, answer = self.server.on_copy(f"/{origin.lstrip('/')}", self.path)
            return self._answer(code, answer)
        data = self.rfile.read(int(self.headers["Content-Length"]))
        code = self.server.always or self.server.put(self.path, data, self.headers["If-None-Match"] == "*")
        if self.server.lost_answers and ".tmp" not in self.path:
            self.server.lost_answers -= 1
            self.close_connection = True
            return
        self._answer(code, etag=_etag(data))

    def do_GET(self) -> None:
        found = self.server.objects.get(self.path)
        time.sleep(self.server.takes_s)
        if self.server.busy:
            self.server.busy -= 1
            return self._answer(503, b"<Error><Code>SlowDown</Code></Error>")
        if found is not None and self.headers["If-Match"] not in (None, _etag(found)):
            return self._answer(412)
        if found is not None and (asked := self.headers["Range"]):
            first, last = (int(each) for each in asked.removeprefix("bytes=").split("-"))
            if first >= len(found):
                return self._answer(416, b"<Error><Code>InvalidRange</Code></Error>")
            last = min(last, len(found) - 1)
            self.server.moved.append(last + 1 - first)
            if self.server.cut_lines:
                self.server.cut_lines -= 1
                return self._answer_half(found[first : last + 1], f"bytes {first}-{last}/{len(found)}")
            return self._answer(
                206, found[first : last + 1], etag=_etag(found), content_range=f"bytes {first}-{last}/{len(found)}"
            )
        body = self.server.says if self.server.always else found
        self._answer(self.server.always or (200 if found is not None else 404), body or b"", etag=_etag(body or b""))

    def do_HEAD(self) -> None:
        found = self.server.objects.get(self.path)
        self._answer(self.server.always or (200 if found is not None else 404), found or b"", etag=_etag(found or b""))

    def do_DELETE(self) -> None:
        self.server.objects.pop(self.path, None)
        self._answer(self.server.always or 204)

    def do_POST(self) -> None:
        """Begins or ends an upload in parts, or deletes several objects in one request."""
        key, _, query = self.path.partition("?")
        if query.startswith("uploads"):
            return self._answer(200, _UPLOAD.encode())
        if query.startswith("uploadId="):
            parts = sorted((each for each in self.server.objects if each.startswith(f"{key}?")), key=_part_number)
            self.server.objects[key] = b"".join(self.server.objects.pop(each) for each in parts)
            return self._answer(200, _COMPLETED.encode())
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        keys = [each.split("</Key>")[0] for each in body.split("<Key>")[1:]]
        for key in keys:
            self.server.objects.pop(f"/bucket/{key}", None)
        deleted = "".join(f"<Deleted><Key>{key}</Key></Deleted>" for key in keys)
        self._answer(self.server.always or 200, f"<DeleteResult>{deleted}</DeleteResult>".encode())

    def _answer(self, code: int, body: bytes = b"", *, etag: str = "", content_range: str = "") -> None:
        self.send_response(code)
        if content_range:
            self.send_header("Content-Range", content_range)
        if etag:
            self.send_header("ETag", etag)
            self.send_header("Last-Modified", "Mon, 23 Nov 2026 00:00:00 GMT")
        self.send_header("Content-Length", f"{len(body)}")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _answer_half(self, body: bytes, content_range: str) -> None:
        self.send_response(206)
        self.send_header("Content-Range", content_range)
        self.send_header("Content-Length", f"{len(body)}")
        self.send_header("Last-Modified", "Mon, 23 Nov 2026 00:00:00 GMT")
        self.end_headers()
        self.wfile.write(body[: len(body) // 2])
        self.close_connection = True

    def log_message(self, *_: object) -> None:
        pass


_COPIED = b"<CopyObjectResult><ETag>etag</ETag></CopyObjectResult>"
_UPLOAD = "<InitiateMultipartUploadResult><UploadId>upload</UploadId></InitiateMultipartUploadResult>"
_COMPLETED = "<CompleteMultipartUploadResult><ETag>etag</ETag></CompleteMultipartUploadResult>"


def _part_number(path: str) -> int:
    return int(path.partition("partNumber=")[2].partition("&")[0])


def _etag(data: bytes) -> str:
    return f'"{sha256(data)}"'


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[_Store]:
    with _Store() as server:
        Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "tests")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "of-nothing")
        monkeypatch.setenv("AWS_REGION", "us-east-1")
        yield server
        server.shutdown()


@pytest.fixture
def files(store: _Store) -> Files:
    return ObjectStoreFiles("s3://bucket", "savepoint", retry_timeout_s=0.5)


def test_a_store_that_accepts_a_second_object_of_the_same_name_is_refused_and_left_clean(store: _Store, files: Files) -> None:
    store.keeps_the_first = False
    with pytest.raises(MissingRequirementError, match="does not keep the first of two files") as refused:
        files.create("savepoint.json", b"{}")
    assert "If-None-Match" in refused.value.remedy
    assert store.objects == {}


def test_the_objects_of_the_check_for_conditional_writes_are_deleted(store: _Store, files: Files) -> None:
    files.create("savepoint.json", b"{}")
    assert list(store.objects) == ["/bucket/savepoint/savepoint.json"]


def test_an_empty_directory_object_of_hadoop_is_no_file() -> None:
    with object_store() as url:
        for name in ("checkpoint/state/", "checkpoint/sources/0/"):
            urlopen(Request(f"{os.environ['AWS_ENDPOINT_URL']}/{BUCKET}/{name}", data=b"", method="PUT"), timeout=30).close()
        files = open_place(url)
        files.create("checkpoint/state/0", b"")
        assert files.paths("checkpoint") == files.paths() == ["checkpoint/state/0"]


def test_a_create_whose_answers_are_lost_has_succeeded(store: _Store, files: Files) -> None:
    files.create("a", b"first")
    store.lost_answers = 1_000
    files.create("b", b"ours")
    assert store.objects["/bucket/savepoint/b"] == b"ours"
    with pytest.raises(AlreadyExistsError):
        files.create("b", b"theirs")


@pytest.mark.parametrize("size_bytes", [3, (8 << 20) - 1])
def test_a_store_that_closes_the_connection_for_an_existing_object_means_that_the_name_is_taken(
    store: _Store, files: Files, size_bytes: int
) -> None:
    source = MemoryFiles()
    source.create("rows", b"r" * size_bytes)
    files.copy(source, "rows", "a")
    store.hangs_up = True
    with pytest.raises(AlreadyExistsError):
        files.copy(source, "rows", "a")
    assert files.digest("a").size_bytes == size_bytes


@pytest.mark.parametrize("code", [401, 403])
def test_the_error_of_a_store_that_denies_access_names_the_place_and_a_remedy(store: _Store, files: Files, code: int) -> None:
    store.always = code
    with pytest.raises(AccessDeniedError, match="s3://bucket/savepoint/a: the store denies access") as refused:
        files.read("a")
    assert "AWS_ACCESS_KEY_ID" in refused.value.remedy
    assert "\n" not in refused.value.failed


def test_a_list_a_delete_and_a_create_say_that_the_store_denies_access(store: _Store, files: Files) -> None:
    store.always = 403
    for call in (files.names, files.paths, files.delete, lambda path: files.create(path, b"")):
        with pytest.raises(AccessDeniedError, match="the store denies access"):
            call("a")


def test_a_missing_object_is_not_found(files: Files) -> None:
    with pytest.raises(NotFoundError, match="s3://bucket/savepoint/x/a does not exist"):
        files.below("x").read("a")


def test_the_error_of_a_process_without_credentials_says_so(store: _Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", f"http://127.0.0.1:{store.server_port}")
    store.always = 403
    with pytest.raises(StorageError) as failed:
        ObjectStoreFiles("s3://bucket", "savepoint", retry_timeout_s=0.1).read("a")
    assert "has no credentials" in failed.value.remedy
    assert "AWS_ACCESS_KEY_ID" in failed.value.remedy


def test_a_store_that_fails_or_is_unavailable_is_an_error_that_may_be_retried(
    store: _Store, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.always = 500
    with pytest.raises(StorageError, match="s3://bucket/savepoint/a: ") as failed:
        files.read("a")
    assert "may be repeated" in failed.value.safe
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{free.getsockname()[1]}")
    away = ObjectStoreFiles("s3://bucket", "savepoint", retry_timeout_s=0.1)
    for call in (away.names, away.read, away.delete, lambda path: away.create(path, b"")):
        with pytest.raises(StorageError, match="s3://bucket/savepoint/a: "):
            call("a")
    source = MemoryFiles()
    source.create("a", b"rows")
    with pytest.raises(StorageError):
        away.copy(source, "a", "a")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("AWS_ENDPOINT_URL", "not a url"),
        ("AWS_ENDPOINT_URL", "127.0.0.1:9000"),
        ("AWS_ENDPOINT_URL", "http://somebody:hidden@127.0.0.1:9000"),
        ("AWS_ENDPOINT_URL_S3", "http://[hidden"),
        ("AWS_SECRET_ACCESS_KEY", None),
    ],
)
def test_settings_that_cannot_be_used_are_refused_and_not_shown(
    store: _Store, monkeypatch: pytest.MonkeyPatch, name: str, value: str | None
) -> None:
    if value is None:
        monkeypatch.delenv(name)
    else:
        monkeypatch.setenv(name, value)
    with pytest.raises(InvalidParameterError, match="settings of the environment for object stores cannot be used") as refused:
        ObjectStoreFiles("s3://bucket", "savepoint")
    assert "hidden" not in f"{refused.value}"


@pytest.mark.usefixtures("no_connections")
def test_the_refusal_of_settings_that_cannot_be_used_names_the_connection_that_has_them(
    store: _Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_settings("lake", S3Settings.from_environment(os.environ), ["s3://bucket"])
    monkeypatch.setenv("AWS_CONDITIONAL_PUT", "disabled")
    with pytest.raises(InvalidParameterError, match="settings of the Airflow connection lake for object stores") as refused:
        ObjectStoreFiles("s3://bucket", "savepoint").create("a", b"")
    assert refused.value.remedy.startswith("Correct the Airflow connection lake, or the variables AWS_… of this process")


def test_a_client_without_conditional_writes_is_refused(store: _Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_CONDITIONAL_PUT", "disabled")
    with pytest.raises(InvalidParameterError, match="cannot be used"):
        ObjectStoreFiles("s3://bucket", "savepoint").create("a", b"")


def test_an_exception_of_the_client_becomes_a_storage_error(store: _Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SESSION_TOKEN", "hidden\n")  # no header can contain a line break
    with pytest.raises(StorageError) as failed:
        ObjectStoreFiles("s3://bucket", "savepoint").read("a")
    assert "hidden" not in f"{failed.value}"


@pytest.mark.parametrize("path", ["day=1\t2/a", "\x7f", "\udcff"])
def test_a_name_that_no_object_can_have_is_refused(files: Files, path: str) -> None:
    with pytest.raises(InvalidParameterError, match="cannot be the name of an object"):
        files.read(path)


def test_the_error_of_a_store_has_its_code_but_no_signature(store: _Store, files: Files) -> None:
    store.always = 403
    store.says = (
        b'<?xml version="1.0"?>\n<Error><Code>SignatureDoesNotMatch</Code><CanonicalRequest>x-amz-security-token:hidden'
        b"</CanonicalRequest></Error>"
    )
    with pytest.raises(AccessDeniedError, match=r"403 Forbidden: SignatureDoesNotMatch\.") as refused:
        files.read("a")
    assert "hidden" not in "".join(format_exception(refused.value))


def test_a_create_that_the_store_refuses_because_of_a_simultaneous_one_is_retried(store: _Store, files: Files) -> None:
    source = MemoryFiles()
    source.create("a", b"rows")
    store.undecided = 2
    files.create("a", b"ours")
    store.undecided = 2
    files.copy(source, "a", "b")
    assert store.objects == {"/bucket/savepoint/a": b"ours", "/bucket/savepoint/b": b"rows"}


def test_a_create_succeeds_if_the_existing_object_is_deleted_meanwhile(store: _Store, files: Files) -> None:
    files.create("a", b"theirs")
    store.forgets_what_it_keeps = True
    files.create("a", b"ours")
    assert store.objects == {"/bucket/savepoint/a": b"ours"}


def test_a_store_that_never_decides_between_creates_is_an_error_that_may_be_retried(store: _Store) -> None:
    store.undecided = 10
    with pytest.raises(StorageError, match="refuses every try") as failed:
        ObjectStoreFiles("s3://bucket", "savepoint", pauses_s=(0.0,)).create("a", b"ours")
    assert failed.value.retry is Retry.WITH_BACKOFF


def test_a_missing_bucket_is_not_taken_for_a_missing_source(store: _Store, files: Files) -> None:
    source = MemoryFiles()
    source.create("a", b"rows")
    store.has_bucket = False
    for write in (lambda: files.copy(source, "a", "a"), lambda: files.create("a", b""), lambda: files.replace("a", b"")):
        with pytest.raises(StorageError, match="the bucket or the upload does not exist") as failed:
            write()
        assert not isinstance(failed.value, NotFoundError)


def test_no_call_moves_more_than_a_part_so_that_a_large_object_is_read_over_a_slow_network(store: _Store, files: Files) -> None:
    data = bytes(range(256)) * (70 << 10)
    store.objects["/bucket/savepoint/a"] = data
    chunks = list(files.chunks("a"))
    assert b"".join(chunks) == data
    assert max(map(len, chunks)) < 4 << 20, "a whole part would be memory that the kernel clears each time"
    assert sorted(store.moved) == [(70 << 18) - (16 << 20), 8 << 20, 8 << 20]


def test_bytes_of_two_objects_with_the_same_name_are_never_mixed(store: _Store, files: Files) -> None:
    store.objects["/bucket/savepoint/a"] = b"1" * (9 << 20)
    chunks = files.chunks("a")
    next(chunks)
    store.objects["/bucket/savepoint/a"] = b"2" * (9 << 20)
    with pytest.raises(StorageError, match="may be repeated"):
        list(chunks)


def test_a_part_of_which_only_a_half_arrives_is_never_taken_for_the_whole(store: _Store, files: Files) -> None:
    store.objects["/bucket/savepoint/a"] = _LARGE
    for read in (lambda: list(files.chunks("a")), lambda: files.copy(files, "a", "b")):
        store.cut_lines = 1
        with pytest.raises(StorageError, match="may be repeated"):
            read()
    assert "/bucket/savepoint/b" not in store.objects


@pytest.mark.slow
def test_a_request_to_a_busy_store_is_repeated_until_the_deadline(store: _Store) -> None:
    store.objects["/bucket/savepoint/a"] = b"rows"
    store.busy = 12
    assert ObjectStoreFiles("s3://bucket", "savepoint").read("a") == b"rows"


def test_the_environment_sets_the_timeout_of_a_call(store: _Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.objects["/bucket/savepoint/a"] = b"rows"
    store.takes_s = 1.0
    assert ObjectStoreFiles("s3://bucket", "savepoint").read("a") == b"rows"
    monkeypatch.setenv("AWS_TIMEOUT", "500ms")
    with pytest.raises(StorageError):
        ObjectStoreFiles("s3://bucket", "savepoint", retry_timeout_s=0.1).read("a")


def _read_in_fork(files: Files, answers: "Queue[str]") -> None:
    try:
        answers.put(f"{files.names('')}")
    except MissingRequirementError as error:
        answers.put(error.failed)


def test_a_forked_process_gets_an_error_and_does_not_wait_for_ever(store: _Store, files: Files) -> None:
    store.objects["/bucket/savepoint/a"] = b"rows"
    files.read("a")
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    forked = context.Process(target=_read_in_fork, args=(files, answers))
    forked.start()
    try:
        assert "cannot be used in a process that was forked" in answers.get(timeout=10)
    finally:
        forked.kill()
        forked.join()


def test_a_store_is_checked_for_conditional_writes_once_in_a_process() -> None:
    requests = Requests()
    with object_store(requests=requests) as url:
        for path in ("a", "b"):
            for files in (open_place(f"{url}/home"), open_place(f"{url}/tables")):
                files.create(path, b"")
    assert sum(each.path.endswith(".tmp") for each in requests.served) == 2


def test_a_small_copy_takes_one_read_and_one_write() -> None:
    requests = Requests()
    with object_store(requests=requests) as url:
        files = open_place(f"{url}/home")
        files.create("state/1", b"state")
        requests.served.clear()
        files.copy(files, "state/1", "kept/1")
        files.sync("kept/1")
        assert [each.method for each in requests.served] == ["GET", "PUT"]
        assert files.digest("kept/1") == (5, sha256(b"state"))


class _InChunks:
    """A source whose file comes in chunks of one size."""

    def __init__(self, data: bytes, chunk_bytes: int) -> None:
        self._data, self._chunk_bytes = data, chunk_bytes

    def chunks(self, path: str) -> Generator[bytes, None, None]:
        yield from (self._data[at : at + self._chunk_bytes] for at in range(0, len(self._data), self._chunk_bytes))


@pytest.mark.parametrize("chunk_bytes", [100_000, 1 << 20, 3 << 20, 20 << 20])
@pytest.mark.parametrize(("size_bytes", "is_one_request"), [(5 << 20, True), (8 << 20, True), (17 << 20, False)])
def test_a_copy_of_up_to_a_part_is_one_conditional_request_whatever_its_chunks(
    store: _Store, files: Files, chunk_bytes: int, size_bytes: int, is_one_request: bool
) -> None:
    data = bytes(range(256)) * (size_bytes >> 8)
    assert files.copy(cast(Files, _InChunks(data, chunk_bytes)), "a", "a") == (size_bytes, sha256(data))
    assert store.objects["/bucket/savepoint/a"] == data
    assert store.conditional == (["/bucket/savepoint/a"] if is_one_request or chunk_bytes > size_bytes else [])


_KEPT = "/bucket/savepoint/kept/1"
_LARGE = bytes(range(256)) * (70 << 10)


def test_a_store_of_s3_copies_a_large_object_itself(store: _Store, files: Files) -> None:
    store.objects["/bucket/savepoint/state/1"] = _LARGE
    assert files.below("kept").copy(files, "state/1", "1") == (len(_LARGE), sha256(_LARGE))
    files.below("kept").sync("1")
    assert (store.objects[_KEPT], store.sent_bytes) == (_LARGE, 0)
    with pytest.raises(AlreadyExistsError):
        files.copy(files, "state/1", "kept/1")
    with pytest.raises(NotFoundError):
        files.copy(files, "state/2", "kept/2")


def test_a_store_that_has_failed_to_copy_is_not_asked_again(store: _Store, files: Files) -> None:
    asked: list[str] = []

    def denies(origin: str, key: str) -> tuple[int, bytes]:
        asked.append(key)
        return 403, b"<Error><Code>AccessDenied</Code></Error>"

    store.objects["/bucket/savepoint/state/1"] = _LARGE
    store.on_copy = denies
    for name in ("1", "2"):
        assert files.copy(files, "state/1", f"kept/{name}") == (len(_LARGE), sha256(_LARGE))
    assert asked == [_KEPT]


def _denies(store: _Store, origin: str, key: str) -> tuple[int, bytes]:
    return 403, b"<Error><Code>AccessDenied</Code></Error>"


def _fails_after_its_answer_began(store: _Store, origin: str, key: str) -> tuple[int, bytes]:
    return 200, b"<Error><Code>InternalError</Code></Error>"


def _copies_a_part(store: _Store, origin: str, key: str) -> tuple[int, bytes]:
    store.objects[key] = store.objects[origin][:-1]
    return 200, _COPIED


def _copies_what_was_written_meanwhile_and_is_small(store: _Store, origin: str, key: str) -> tuple[int, bytes]:
    store.objects[origin] = b"small"
    return store.copy(origin, key)


def _copies_what_was_written_meanwhile(store: _Store, origin: str, key: str) -> tuple[int, bytes]:
    store.objects[origin] = _LARGE[::-1]
    return store.copy(origin, key)


@pytest.mark.parametrize(
    "fails",
    [
        _denies,
        _fails_after_its_answer_began,
        _copies_a_part,
        _copies_what_was_written_meanwhile,
        _copies_what_was_written_meanwhile_and_is_small,
    ],
)
def test_an_object_that_the_store_does_not_copy_as_it_was_read_is_put_in_parts(
    store: _Store, files: Files, fails: Callable[[_Store, str, str], tuple[int, bytes]]
) -> None:
    store.objects["/bucket/savepoint/state/1"] = _LARGE
    store.on_copy = partial(fails, store)
    copied = files.copy(files, "state/1", "kept/1")
    assert store.objects[_KEPT] == store.objects["/bucket/savepoint/state/1"]
    assert copied == (store.sent_bytes, sha256(store.objects[_KEPT])) == (len(store.objects[_KEPT]), sha256(store.objects[_KEPT]))


@pytest.mark.parametrize(("size_bytes", "reads"), [(0, 1), (5, 1), (8 << 20, 1), ((8 << 20) + 1, 2), (20 << 20, 3)])
def test_each_part_of_an_object_is_read_once(size_bytes: int, reads: int) -> None:
    requests = Requests()
    with object_store(requests=requests) as url:
        files = open_place(f"{url}/home")
        files.replace("state/1", bytes(size_bytes))
        requests.served.clear()
        assert files.digest("state/1") == (size_bytes, sha256(bytes(size_bytes)))
        assert [each.method for each in requests.served] == ["GET"] * reads


def test_sync_notices_a_missing_copy() -> None:
    with object_store() as url:
        files = open_place(f"{url}/home")
        files.create("state/1", b"state")
        for deleted in ("kept/1", "kept"):
            files.copy(files, "state/1", "kept/1")
            files.delete(deleted)
            with pytest.raises(NotFoundError):
                files.sync("kept/1")
        files.copy(files, "state/1", "kept/1")
        files.sync("kept/1")
        files.below("kept").delete("1")
        with pytest.raises(NotFoundError):
            files.sync("kept/1")
