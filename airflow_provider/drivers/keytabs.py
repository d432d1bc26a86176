"""The keytab of a Spark connection, as a file for ``spark-submit``."""

import base64
import binascii
import hashlib
import os
import stat
import tempfile
from pathlib import Path

from spark_jobs.protocol.errors import AccessDeniedError, InvalidParameterError


def keytab_file(encoded: str | None) -> str | None:
    """Where this host has the keytab, made if missing; None where there is none.

    The same keytab is the same file, in a directory of temporary files that only this user can enter. The Spark provider would write it
    where every user of the host can read it.

    Args:
        encoded: The keytab in base64, as a Spark connection has it.

    Raises:
        InvalidParameterError: It is not base64.
        AccessDeniedError: Somebody else has made that directory.
    """
    if not encoded:
        return None
    try:
        content = base64.b64decode(encoded, validate=False)
    except binascii.Error as error:
        raise InvalidParameterError(
            "The keytab of the Spark connection is not base64.",
            safe="No driver was started.",
            remedy="Write what `base64 KEYTAB` prints into it.",
        ) from error
    file = _private_directory() / f"{hashlib.sha256(content).hexdigest()[:32]}.keytab"
    if not file.exists():
        descriptor, unfinished = tempfile.mkstemp(dir=file.parent)  # readable for this user only
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(content)
        os.replace(unfinished, file)
    return str(file)


def _private_directory() -> Path:
    directory = Path(tempfile.gettempdir()) / f"stream-pipeline-{os.getuid()}"
    directory.mkdir(mode=0o700, exist_ok=True)
    found = directory.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise AccessDeniedError(
            f"{directory} belongs to somebody else, or others can enter it: no keytab is put there.",
            safe="No driver was started.",
            remedy="Remove it.",
            path=str(directory),
        )
    return directory
