"""A role of this host that has the keys of a store, so that no process has them in its environment."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from tests.support.object_store import ACCESS_KEY, SECRET_KEY

TOKEN = "token-of-the-pod"


class Role(ThreadingHTTPServer):
    """The service of a host that gives keys to the processes there, as that of EKS Pod Identity does."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Keys)
        self.clients: set[str] = set()
        """The kinds of the clients that have asked."""


class _Keys(BaseHTTPRequestHandler):
    server: Role

    def do_GET(self) -> None:
        assert self.headers["Authorization"] == TOKEN
        self.server.clients.add("Java" if "java" in self.headers.get("User-Agent", "").lower() else "Rust")
        until = datetime.now(UTC) + timedelta(hours=1)
        keys = {"AccessKeyId": ACCESS_KEY, "SecretAccessKey": SECRET_KEY, "Token": "of-the-role"}
        body = json.dumps(keys | {"Expiration": until.strftime("%Y-%m-%dT%H:%M:%SZ")}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@contextmanager
def role_of_this_host(directory: Path) -> Iterator[Role]:
    """Takes the keys of the store from the environment, and gives them to the role of the host.

    Args:
        directory: Gets the token with which processes ask for the keys.
    """
    (directory / "token").write_text(TOKEN)
    with Role() as role, pytest.MonkeyPatch.context() as patch:
        Thread(target=role.serve_forever, daemon=True).start()
        for variable in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            patch.delenv(variable)
        patch.setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", str(directory / "token"))
        patch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"http://127.0.0.1:{role.server_address[1]}/role")
        try:
            yield role
        finally:
            role.shutdown()
