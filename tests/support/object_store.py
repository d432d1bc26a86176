"""An S3 server on this machine, for tests of files in an object store."""

import json
import logging
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock, Thread
from typing import Any
from urllib.parse import urlencode
from urllib.request import Request, urlopen
from uuid import uuid4

import pytest

BUCKET = "savepoints"
GOOGLE_BUCKET = "homes"
ACCESS_KEY = "tests"
SECRET_KEY = "of-nothing"
S3_JARS = ".s3.jars"
"""The list of the jars with which Spark speaks to S3."""
OTHER_SERVER = "SPARK_TESTS_S3"
"""An environment variable. If it is set, the tests use the server that the environment names. The server has a bucket ``savepoints``."""


_SIGNED = "AWS4-HMAC-SHA256 Credential=tests/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=unchecked"
"""A signature of S3's protocol, in which moto looks for the service."""


@dataclass(frozen=True)
class Served:
    """A request that a server has answered."""

    at_s: float
    """The time of its arrival, since 1970."""
    method: str
    """The method; LIST for a GET of a list of objects."""
    path: str
    """The bucket and the key; of a LIST, the bucket."""


@dataclass
class Requests:
    """The requests that a server has answered, and how long it waits before each answer."""

    latency_s: float = 0.0
    served: list[Served] = field(default_factory=list)

    def serve(self, environment: dict[str, Any]) -> None:
        """Keeps a request, and waits."""
        lists = environment["REQUEST_METHOD"] == "GET" and "list-type" in environment.get("QUERY_STRING", "")
        self.served.append(Served(time.time(), "LIST" if lists else environment["REQUEST_METHOD"], environment["PATH_INFO"]))
        time.sleep(self.latency_s)


@contextmanager
def object_store(silence: "Lock | None" = None, requests: Requests | None = None) -> Iterator[str]:
    """Starts a server with an empty place, found by this process and its children in their environment. Yields the place's URL.

    Args:
        silence: No request is answered while a test holds this lock. The server then belongs to this process alone.
        requests: Gets each request. The server then belongs to this process alone.
    """
    if silence is None and requests is None and OTHER_SERVER in os.environ:
        yield f"s3://{BUCKET}/{uuid4()}"
        return
    with _server(silence or Lock(), requests or Requests()) as url, s3_environment(url):
        # All servers of a process share their data.
        for path, method in (("moto-api/reset", "POST"), (BUCKET, "PUT"), (GOOGLE_BUCKET, "PUT")):
            urlopen(Request(f"{url}/{path}", method=method), timeout=30).close()
        yield f"s3://{BUCKET}"


@contextmanager
def object_store_apart() -> Iterator[str]:
    """Starts a server as :func:`object_store` does, in a process of its own.

    Some calls of delta-rs, such as a restore, wait for the store without letting other threads of Python run.
    """
    if OTHER_SERVER in os.environ:
        yield f"s3://{BUCKET}/{uuid4()}"
        return
    program = "from tests.support.object_store import serve; serve()"
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", program], cwd=Path(__file__).parents[2], **pipes) as server:
        assert server.stdout
        assert server.stdin
        url = server.stdout.readline().strip()
        with server.stdin, s3_environment(url):
            urlopen(Request(f"{url}/{BUCKET}", method="PUT"), timeout=30).close()
            yield f"s3://{BUCKET}"


@contextmanager
def object_store_of_two_owners(
    own: str, others: str, missing: str, *, actions: Sequence[str] = ("s3:*",), below: str = ""
) -> Iterator[None]:
    """Starts a server as :func:`object_store_apart` does, with two buckets, and with a user whose policy allows only the first.

    The environment has the user's keys. The server checks the signature and the policy of every request.

    Args:
        own: The bucket that the user may use.
        others: The bucket that the user may not use.
        missing: The name of a bucket that the user may use, but that does not exist.
        actions: What the policy allows the user to do in the first and the last bucket.
        below: The prefix of the objects that the policy allows.
    """
    with object_store_apart(), pytest.MonkeyPatch.context() as patch:
        url = os.environ["AWS_ENDPOINT_URL"]
        for bucket in (own, others):
            urlopen(Request(f"{url}/{bucket}", method="PUT"), timeout=30).close()

        def ask(**call: str) -> str:
            request = Request(url, urlencode(call).encode(), {"Authorization": _SIGNED.replace("/s3/", "/iam/")})
            with urlopen(request, timeout=30) as answer:
                return str(answer.read().decode())

        allowed = [f"arn:aws:s3:::{bucket}{keys}" for bucket in (own, missing) for keys in ("", f"/{below}*")]
        policy = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": list(actions), "Resource": allowed}]}
        ask(Action="CreateUser", UserName="driver")
        ask(Action="PutUserPolicy", UserName="driver", PolicyName="own", PolicyDocument=json.dumps(policy))
        keys = ask(Action="CreateAccessKey", UserName="driver")
        for name, field_ in (("AWS_ACCESS_KEY_ID", "AccessKeyId"), ("AWS_SECRET_ACCESS_KEY", "SecretAccessKey")):
            found = re.search(f"<{field_}>(.*)</{field_}>", keys)
            assert found
            patch.setenv(name, found[1])
        checked = Request(f"{url}/moto-api/reset-auth", b"0", {"Content-Type": "text/plain"}, method="POST")
        urlopen(checked, timeout=30).close()
        yield


def serve() -> None:
    """Serves until standard input ends. The first line of standard output is the server's URL."""
    with _server(Lock(), Requests()) as url:
        sys.stdout.write(f"{url}\n")
        sys.stdout.flush()
        sys.stdin.read()


@contextmanager
def s3_environment(url: str) -> Iterator[None]:
    """Sets the variables by which this process and its children find a server."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", url)
        patch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
        patch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
        patch.setenv("AWS_REGION", "us-east-1")
        yield


def store_connection() -> str:
    """Returns an Airflow connection of type ``aws`` with the server and the keys that this process has in its environment."""
    keys = {"login": os.environ["AWS_ACCESS_KEY_ID"], "password": os.environ["AWS_SECRET_ACCESS_KEY"]}
    extra = {"endpoint_url": os.environ["AWS_ENDPOINT_URL"], "region_name": os.environ["AWS_REGION"]}
    return json.dumps({"conn_type": "aws", **keys, "extra": extra})


@contextmanager
def google_store() -> Iterator[str]:
    """Starts a server that speaks Google's variant of S3's protocol. Its place is found as that of :func:`object_store` is."""
    with _server(Lock(), Requests(), google=True) as url, pytest.MonkeyPatch.context() as patch:
        urlopen(Request(f"{url}/{GOOGLE_BUCKET}", method="PUT"), timeout=30).close()
        patch.setenv("STORAGE_EMULATOR_HOST", url)
        yield f"gs://{GOOGLE_BUCKET}"


@contextmanager
def _server(one_at_a_time: "Lock", requests: Requests, *, google: bool = False) -> Iterator[str]:
    # Imported here because it takes a second, which processes that only find the server save.
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
    from werkzeug.serving import make_server

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    moto = DomainDispatcherApplication(create_backend_app)

    def answer(environment: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        requests.serve(environment)
        if google:
            environment["HTTP_AUTHORIZATION"] = _SIGNED
            if environment.pop("HTTP_X_GOOG_IF_GENERATION_MATCH", None) == "0":
                environment["HTTP_IF_NONE_MATCH"] = "*"
        with one_at_a_time:  # moto checks whether an object exists, and puts it, in two steps
            found: Iterable[bytes] = moto(environment, start_response)
        return found

    with make_server("127.0.0.1", 0, answer, threaded=True, request_handler=MotoRequestHandler) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, name="s3")
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
