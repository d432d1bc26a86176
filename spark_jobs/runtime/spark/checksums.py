"""The checksum that Hadoop keeps beside each file that it writes in a directory: ``.<name>.crc``.

A reader refuses bytes that do not fit it, and takes a file without one as it is. So whoever changes a file of Spark's takes the checksum
away first: a crash between the two leaves the old bytes, and they can be read.
"""

from spark_jobs.storage.files import Files


def checksum_name(name: str) -> str:
    """What the checksum of the file ``name`` is called, in the same directory."""
    return f".{name}.crc"


def forget_checksum(files: Files, path: str) -> None:
    """Deletes the checksum of ``path``, if there is one."""
    above, slash, name = path.rpartition("/")
    files.delete(f"{above}{slash}{checksum_name(name)}")


def rewrite(files: Files, path: str, data: bytes) -> None:
    """Puts ``data`` under ``path``, which Spark may have written and is going to read, durably: the old bytes are there, or the new."""
    forget_checksum(files, path)
    files.replace(path, data)
    files.sync(path)
