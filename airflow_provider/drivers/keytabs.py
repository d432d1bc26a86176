"""Writes the keytab of a Spark connection into a file for ``spark-submit``."""

import base64
import binascii
import hashlib
import os
import stat
import tempfile
from pathlib import Path

from spark_jobs.protocol.errors import AccessDeniedError, InvalidParameterError


def keytab_file(encoded: str | None, temporary: Path | None = None) -> str | None:
    """Returns the path of the keytab file on this host, and writes the file if it does not exist. Returns None without a keytab.

    The same keytab is always the same file, in a temporary directory that only this user can enter. The Spark provider itself would write
    it where every user of the host can read it.

    Args:
        encoded: The keytab in base64, from the Spark connection.
        temporary: A directory for temporary files; None: that of this host.

    Raises:
        InvalidParameterError: The text is not base64.
        AccessDeniedError: Another user has made that directory.
    """
    if not encoded:
        return None
    try:
        content = base64.b64decode(encoded, validate=False)
    except binascii.Error as error:
        raise InvalidParameterError(
            "The keytab of the Spark connection is not base64.",
            safe="No driver was started.",
            remedy="Set it to the output of `base64 KEYTAB`.",
        ) from error
    file = _private_directory(temporary or Path(tempfile.gettempdir())) / f"{hashlib.sha256(content).hexdigest()[:32]}.keytab"
    if not file.exists():
        descriptor, unfinished = tempfile.mkstemp(dir=file.parent)  # only this user can read it
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(content)
        os.replace(unfinished, file)
    return str(file)


def _private_directory(temporary: Path) -> Path:
    directory = temporary / f"stream-pipeline-{os.getuid()}"
    directory.mkdir(mode=0o700, exist_ok=True)
    found = directory.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise AccessDeniedError(
            f"{directory} belongs to another user, or others can enter it. No keytab was written.",
            safe="No driver was started.",
            remedy=f"Remove {directory}.",
            path=str(directory),
        )
    return directory
