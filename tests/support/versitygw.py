"""A server of S3's protocol on this machine that keeps objects as files, and is a process of its own."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

from tests.support.object_store import ACCESS_KEY, BUCKET, SECRET_KEY, s3_environment
from tests.support.servers import first_status, free_port

PROGRAM = Path(sys.prefix) / "versitygw" / "versitygw"
_STARTS_S = 30.0


@contextmanager
def versitygw(root: Path, bucket: str = BUCKET) -> Iterator[str]:
    """Starts a server with an empty bucket, found by this process and its children in their environment. Yields the place's URL.

    Args:
        root: A new directory for the objects.
        bucket: Name of the bucket.
    """
    (root / bucket).mkdir(parents=True)
    port = free_port()
    command = [str(PROGRAM), "--port", f"127.0.0.1:{port}", "--quiet", "posix", str(root)]
    keys = {"ROOT_ACCESS_KEY": ACCESS_KEY, "ROOT_SECRET_KEY": SECRET_KEY}
    with (
        subprocess.Popen(command, env=os.environ | keys, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server,
        s3_environment(f"http://127.0.0.1:{port}"),
    ):
        try:
            first_status(port, lambda line: line.request("HEAD", "/"), _STARTS_S)
            yield f"s3://{bucket}"
        finally:
            server.terminate()


@contextmanager
def versitygw_of(spark: Any, root: Path) -> Iterator[str]:
    """Starts a server as :func:`versitygw` does, with a bucket of its own. The session finds the bucket.

    The session already has the other settings from :func:`tests.support.session_stores.store_of`.
    """
    bucket = uuid4().hex
    with versitygw(root, bucket) as place:
        spark.sparkContext._jsc.hadoopConfiguration().set(f"fs.s3a.bucket.{bucket}.endpoint", os.environ["AWS_ENDPOINT_URL"])
        yield place
