"""Servers that tests start as processes of their own."""

import socket
import time
from collections.abc import Callable
from contextlib import closing
from http.client import HTTPConnection


def free_port() -> int:
    """Returns a port of this machine that nobody listens on."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


def first_status(port: int, ask: Callable[[HTTPConnection], None], starts_s: float) -> int:
    """Sends a request as soon as a server listens, and returns the status of its answer.

    Args:
        port: Port of the server.
        ask: Sends the request.
        starts_s: Time that the server may take to start.
    """
    ends_s = time.monotonic() + starts_s
    while True:
        try:
            with closing(HTTPConnection("127.0.0.1", port, timeout=10)) as connection:
                ask(connection)
                return connection.getresponse().status
        except OSError:
            if time.monotonic() > ends_s:
                raise
            time.sleep(0.1)
