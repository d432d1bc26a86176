"""A driver that believes it is on another host: ``python -m tests.support.distant_driver run …``."""

import socket
import tempfile
from pathlib import Path

from spark_jobs.cli import main
from spark_jobs.runtime.start import work_directory

HOST = "another-host"

if __name__ == "__main__":
    socket.gethostname = lambda: HOST
    with tempfile.NamedTemporaryFile("w", suffix=".boot") as boot:
        boot.write(HOST)
        boot.flush()
        work_directory._BOOT_ID = Path(boot.name)
        main()
