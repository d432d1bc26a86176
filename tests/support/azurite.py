"""A server of Azure's blob storage on this machine, for tests of files in Azure."""

import base64
import hashlib
import hmac
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from email.utils import formatdate
from pathlib import Path
from urllib.parse import urlencode

import pytest

from tests.support.servers import first_status, free_port

ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""The key of the only account, which the documentation of the server names."""
CONTAINER = f"lake@{ACCOUNT}.dfs.core.windows.net"
AZURE_JARS = ".azure.jars"
"""The list of the jars with which Spark speaks to Azure."""
_PROGRAM = Path(sys.prefix) / "azurite" / "node_modules" / ".bin" / "azurite-blob"
_VERSION = "2021-12-02"
_STARTS_S = 60.0


@contextmanager
def azurite() -> Iterator[str]:
    """Starts a server with an empty container, found by this process and its children in their environment. Yields the place's URL."""
    port = free_port()
    options = ["--skipApiVersionCheck", "--disableTelemetry", "--inMemoryPersistence", "--silent"]
    command = [str(_PROGRAM), "--blobHost", "127.0.0.1", "--blobPort", str(port), *options]
    with (
        subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server,
        pytest.MonkeyPatch.context() as patch,
    ):
        try:
            _make_container(port)
            patch.setenv("AZURE_STORAGE_ENDPOINT", f"http://127.0.0.1:{port}/{ACCOUNT}")
            patch.setenv("AZURE_STORAGE_ACCOUNT_KEY", KEY)
            yield f"abfss://{CONTAINER}"
        finally:
            server.terminate()


def shared_access_signature(permissions: str) -> str:
    """Returns a token for the container that is valid for an hour.

    Args:
        permissions: Their letters, in the order of ``racwdl``: read, add, create, write, delete, list.
    """
    name, ends = CONTAINER.partition("@")[0], (datetime.now(UTC) + timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
    before, after = "\n" * 4, "\n" * 7  # optional fields
    signed = f"{permissions}\n\n{ends}\n/blob/{ACCOUNT}/{name}{before}{_VERSION}\nc{after}"
    return urlencode({"sv": _VERSION, "sr": "c", "sp": permissions, "se": ends, "sig": _signature(signed)})


def _signature(signed: str) -> str:
    return base64.b64encode(hmac.digest(base64.b64decode(KEY), signed.encode(), hashlib.sha256)).decode()


def _make_container(port: int) -> None:
    """Makes the container as soon as the server answers."""
    name = CONTAINER.partition("@")[0]
    date = formatdate(usegmt=True)
    unused = "\n" * 12
    signed = f"PUT{unused}x-ms-date:{date}\nx-ms-version:{_VERSION}\n/{ACCOUNT}/{ACCOUNT}/{name}\nrestype:container"
    headers = {
        "x-ms-date": date,
        "x-ms-version": _VERSION,
        "Content-Length": "0",
        "Authorization": f"SharedKey {ACCOUNT}:{_signature(signed)}",
    }
    made = first_status(
        port, lambda line: line.request("PUT", f"/{ACCOUNT}/{name}?restype=container", headers=headers), _STARTS_S
    )
    assert made == 201, made
