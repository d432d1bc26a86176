"""A PostgreSQL for the tests, which a test can stop for a while."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class Postgres:
    """A server behind a socket in its own directory."""

    def __init__(self, server: Any) -> None:
        self._server = server

    @property
    def uri(self) -> str:
        """Returns the URI without the scheme."""
        return str(self._server.get_uri()).removeprefix("postgresql://")

    def stop(self) -> None:
        """Ends the server, and every connection to it."""
        from pgserver._commands import pg_ctl  # type: ignore[attr-defined]  # made when the module is imported

        pg_ctl(["-w", "-m", "fast", "stop"], pgdata=self._server.pgdata, user=self._server.system_user)

    def start(self) -> None:
        """Starts the server again. It is ready on return."""
        self._server.ensure_postgres_running()


@contextmanager
def postgres(directory: Path) -> Iterator[Postgres]:
    """Starts a PostgreSQL with its data in ``directory``, which ends when the context closes."""
    os.environ.setdefault("XDG_RUNTIME_DIR", str(directory.parent))  # for its locks
    from pgserver.postgres_server import get_server

    server = get_server(directory, cleanup_mode="stop")
    try:
        yield Postgres(server)
    finally:
        server.cleanup()


def airflow_settings(database: Postgres) -> dict[str, str]:
    """Returns Airflow's settings for the server."""
    return {
        "DATABASE__SQL_ALCHEMY_CONN": f"postgresql+psycopg2://{database.uri}",
        "DATABASE__SQL_ALCHEMY_CONN_ASYNC": f"postgresql+asyncpg://{database.uri}",
    }
