"""A line to a server. Each answer begins some time after the server has sent it, as if the server were far away."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from fcntl import F_SETPIPE_SZ, fcntl
from pathlib import Path
from threading import Event, Thread

_CHUNK_BYTES = 1 << 20


@contextmanager
def slow_line(port: int) -> Iterator[tuple[int, Callable[[float], None]]]:
    """Opens a line to a server on this host. It is a process of its own.

    Args:
        port: Port of the server.

    Yields:
        The port of the line, and a function that sets the time in seconds before each answer. Until it is called, the time is 0.
    """
    command = [sys.executable, "-m", "benchmarks.slow_line", str(port)]
    root = Path(__file__).parents[1]
    with subprocess.Popen(command, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as line:
        assert line.stdin
        assert line.stdout
        commands = line.stdin

        def set_latency(latency_s: float) -> None:
            commands.write(f"{latency_s}\n")
            commands.flush()

        with commands:
            yield int(line.stdout.readline()), set_latency


class _Line:
    """Passes bytes on in threads. The kernel moves the bytes of answers, so that the line takes no processor from what is measured.

    Args:
        port: Port of the server.
    """

    latency_s = 0.0

    def __init__(self, port: int) -> None:
        self._port = port

    def serve(self, listening: socket.socket) -> None:
        while True:
            client, _ = listening.accept()
            server = socket.create_connection(("127.0.0.1", self._port))
            asked = Event()
            for work in (self._ask, self._answer):
                Thread(target=work, args=(client, server, asked), daemon=True).start()

    def _ask(self, client: socket.socket, server: socket.socket, asked: Event) -> None:
        with _ending(server):
            for data in _received(client):
                asked.set()
                server.sendall(data)

    def _answer(self, client: socket.socket, server: socket.socket, asked: Event) -> None:
        with _ending(client), _pipe() as (reading, writing):
            while server.recv(1, socket.MSG_PEEK):
                if asked.is_set():
                    asked.clear()
                    time.sleep(self.latency_s)
                left_bytes = os.splice(server.fileno(), writing, _CHUNK_BYTES)
                while left_bytes:
                    left_bytes -= os.splice(reading, client.fileno(), left_bytes)


def _received(connection: socket.socket) -> Iterator[memoryview]:
    data = memoryview(bytearray(_CHUNK_BYTES))
    while size_bytes := connection.recv_into(data):
        yield data[:size_bytes]


@contextmanager
def _pipe() -> Iterator[tuple[int, int]]:
    """Opens a pipe with room for a chunk. Yields its ends: for reading and for writing."""
    ends = os.pipe()
    try:
        with suppress(PermissionError):  # a user has room for few large pipes
            fcntl(ends[1], F_SETPIPE_SZ, _CHUNK_BYTES)
        yield ends
    finally:
        for end in ends:
            os.close(end)


@contextmanager
def _ending(connection: socket.socket) -> Iterator[None]:
    """Ends what is sent on a connection with the context. A connection that one end has closed ends the context, too."""
    with suppress(OSError):
        yield
    with suppress(OSError):
        connection.shutdown(socket.SHUT_WR)


def main(port: int) -> None:
    """Prints the port of the line, and serves until standard input ends. Each line of the input is a time before answers."""
    line = _Line(port)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        print(listening.getsockname()[1], flush=True)
        Thread(target=line.serve, args=(listening,), daemon=True).start()
        for latency_s in sys.stdin:
            line.latency_s = float(latency_s)


if __name__ == "__main__":
    main(int(sys.argv[1]))
