"""A connection to a store that breaks after the store has done a request. The client gets no answer."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Thread
from urllib.parse import urlsplit


class LostAnswers:
    """A proxy of a store.

    Args:
        store: The store's URL.
    """

    def __init__(self, store: str) -> None:
        place = urlsplit(store)
        self._store = (str(place.hostname), int(place.port or 80))
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        self.ending: bytes | None = None
        """The answer to the next PUT of an object whose name ends with this is lost. None: no answer is lost."""
        self.lost = 0

    def serve(self) -> None:
        """Accepts connections until :meth:`close`."""
        with suppress(OSError):
            while True:
                line, _ = self._listening.accept()
                Thread(target=self._forward, args=(line,), daemon=True).start()

    def close(self) -> None:
        """Ends :meth:`serve`."""
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()

    def _forward(self, line: socket.socket) -> None:
        cut = False

        def answers() -> None:
            with suppress(OSError):
                while answer := store.recv(1 << 16):
                    if cut and not answer.startswith(b"HTTP/1.1 100"):
                        break
                    line.sendall(answer)
            with suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)

        with line, socket.create_connection(self._store) as store, suppress(OSError):
            Thread(target=answers, daemon=True).start()
            while asked := line.recv(1 << 16):
                head = asked.partition(b"\r\n")[0].partition(b"?")[0].removesuffix(b" HTTP/1.1")
                if self.ending is not None and head.startswith(b"PUT ") and head.endswith(self.ending):
                    self.ending, cut = None, True
                    self.lost += 1
                store.sendall(asked)


@contextmanager
def lost_answers(store: str) -> Iterator[LostAnswers]:
    """Starts a proxy of a store that loses no answer yet."""
    proxy = LostAnswers(store)
    thread = Thread(target=proxy.serve, daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        proxy.close()
        thread.join()
