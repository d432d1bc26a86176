"""A server of Google Cloud Storage on this machine, for Spark and for this runtime.

Spark's connector speaks Google's JSON protocol, which the server has whole. obstore and delta-rs speak its XML protocol. There the server
takes no uploads, and ignores where a list begins. So they reach it through a gate that mends this.
"""

import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit
from uuid import uuid4
from xml.sax.saxutils import unescape

import pytest

from tests.support.servers import first_status, free_port

BUCKET = "lake"
GOOGLE_JARS = ".google.jars"
"""The list of the jars with which Spark speaks to Google Cloud Storage."""
PLAIN_NUMBERS = {
    "spark.hadoop.fs.gs.block.size": "67108864",
    "spark.hadoop.fs.gs.inputstream.inplace.seek.limit": "8388608",
    "spark.hadoop.fs.gs.inputstream.min.range.request.size": "2097152",
    "spark.hadoop.fs.gs.outputstream.buffer.size": "8388608",
    "spark.hadoop.fs.gs.outputstream.sync.min.interval": "0",
    "spark.hadoop.fs.gs.rewrite.max.chunk.size": "536870912",
}
"""Hadoop 3.5 has defaults such as ``64m`` for its own client, which Google's connector cannot read."""
CONNECTOR = PLAIN_NUMBERS | {
    "spark.hadoop.fs.gs.impl": "com.google.cloud.hadoop.fs.gcs.GoogleHadoopFileSystem",
    "spark.hadoop.fs.AbstractFileSystem.gs.impl": "com.google.cloud.hadoop.fs.gcs.GoogleHadoopFS",
    "spark.hadoop.fs.gs.project.id": "tests",
    "spark.hadoop.fs.gs.operation.move.enable": "false",  # the server has no move
}
"""Spark's settings for Google's connector."""
_PROGRAM = Path(sys.prefix) / "google" / "fake-gcs-server"
_STARTS_S = 30.0
_LISTED = re.compile(rb"<Contents><Key>(.*?)</Key>.*?</Contents>", re.DOTALL)
_OWN_HEADERS = frozenset({"connection", "content-length", "date", "host", "transfer-encoding"})


@contextmanager
def google_cloud() -> Iterator[str]:
    """Starts a server with an empty bucket, found by this process and its children in their environment. Yields the place's URL."""
    port = free_port()
    address = f"127.0.0.1:{port}"
    command = [
        str(_PROGRAM),
        "-scheme",
        "http",
        "-host",
        "127.0.0.1",
        "-port",
        str(port),
        "-public-host",
        address,
        "-backend",
        "memory",
    ]
    with (
        subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server,
        _Gate(address) as gate,
        pytest.MonkeyPatch.context() as patch,
    ):
        thread = Thread(target=gate.serve_forever, kwargs={"poll_interval": 0.05}, name="gate")
        thread.start()
        try:
            _make_bucket(port)
            patch.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{gate.server_port}")
            yield f"gs://{BUCKET}"
        finally:
            gate.shutdown()
            thread.join()
            server.terminate()


class _Gate(ThreadingHTTPServer):
    """Translates uploads, and passes all other requests on."""

    daemon_threads = True

    def __init__(self, address: str) -> None:
        super().__init__(("127.0.0.1", 0), _Requests)
        self.address = address
        self.parts: dict[str, dict[int, bytes]] = {}
        """The parts of uploads that are under way, by upload and number."""


class _Requests(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Gate

    def log_message(self, format: str, *args: object) -> None:
        pass

    def answer(self) -> None:
        """Answers a request of any kind."""
        url, data = urlsplit(self.path), self.body()
        asked = {name: values[0] for name, values in parse_qs(url.query, keep_blank_values=True).items()}
        is_json = url.path.startswith(("/storage/", "/upload/", "/download/", "/batch/", "/resumable/"))
        if self.command == "DELETE" and "uploadId" in asked:
            self.server.parts.pop(asked["uploadId"])
            self.respond(204, {}, b"")
        elif is_json or self.command not in ("PUT", "POST"):
            status, headers, body = self.pass_on(data)
            after = asked.get("start-after", "")
            if after:
                body = _LISTED.sub(lambda found: found[0] if unescape(found[1].decode()) > after else b"", body)
            self.respond(status, headers, body)
        elif "uploads" in asked:
            upload = uuid4().hex
            self.server.parts[upload] = {}
            self.respond(
                200, {}, f"<InitiateMultipartUploadResult><UploadId>{upload}</UploadId></InitiateMultipartUploadResult>".encode()
            )
        elif "partNumber" in asked:
            self.server.parts[asked["uploadId"]][int(asked["partNumber"])] = data
            self.respond(200, {"ETag": f'"{asked["partNumber"]}"'}, b"")
        elif "uploadId" in asked:
            parts = self.server.parts.pop(asked["uploadId"])
            self.put(url.path, b"".join(parts[number] for number in sorted(parts)), None)
        else:
            self.put(url.path, data, self.headers.get("x-goog-if-generation-match"))

    do_DELETE = do_GET = do_HEAD = do_POST = do_PUT = answer

    def body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        chunks = []
        while size_bytes := int(self.rfile.readline(), 16):
            chunks.append(self.rfile.read(size_bytes))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(chunks)

    def put(self, path: str, data: bytes, generation: str | None) -> None:
        """Puts an object by the server's JSON protocol; on condition of its generation, unless that is None."""
        _, bucket, key = path.split("/", 2)
        condition = "" if generation is None else f"&ifGenerationMatch={generation}"
        target = f"/upload/storage/v1/b/{bucket}/o?uploadType=media&name={quote(unquote(key), safe='')}{condition}"
        status, _, body = self.ask("POST", target, data, {"Content-Type": "application/octet-stream"})
        if status != 200:
            self.respond(status, {}, body)
            return
        kept = json.loads(body)
        tag = f'"{kept["etag"]}"'
        whole = (
            f"<CompleteMultipartUploadResult><ETag>{tag}</ETag></CompleteMultipartUploadResult>" if self.command == "POST" else ""
        )
        self.respond(200, {"ETag": tag, "x-goog-generation": str(kept["generation"])}, whole.encode())

    def pass_on(self, data: bytes) -> tuple[int, dict[str, str], bytes]:
        """Lets the server answer."""
        headers = {name: value for name, value in self.headers.items() if name.lower() not in _OWN_HEADERS}
        return self.ask(self.command, self.path, data or None, headers)

    def ask(self, method: str, target: str, data: bytes | None, headers: Mapping[str, str]) -> tuple[int, dict[str, str], bytes]:
        """Returns the status, the headers and the body of the server's answer."""
        with closing(HTTPConnection(self.server.address, timeout=60)) as connection:
            connection.request(method, target, body=data, headers=dict(headers))
            found = connection.getresponse()
            return found.status, dict(found.getheaders()), found.read()

    def respond(self, status: int, headers: Mapping[str, Any], body: bytes) -> None:
        self.send_response(status)
        for name, value in headers.items():
            if name.lower() not in _OWN_HEADERS:
                self.send_header(name, value)
        sized = next((value for name, value in headers.items() if name.lower() == "content-length"), "0")
        self.send_header("Content-Length", sized if self.command == "HEAD" else str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def _make_bucket(port: int) -> None:
    """Makes the bucket as soon as the server answers."""
    body, headers = json.dumps({"name": BUCKET}), {"Content-Type": "application/json"}
    made = first_status(port, lambda line: line.request("POST", "/storage/v1/b", body, headers), _STARTS_S)
    assert made == 200, made
