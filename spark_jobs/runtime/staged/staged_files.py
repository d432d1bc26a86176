"""Staged files at the moment when they are about to be named."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any
from urllib.parse import unquote

from spark_jobs.checkpoint.named_files import with_digest
from spark_jobs.storage.beside import at_once
from spark_jobs.storage.files import Files

_AT_ONCE = 8


def make_durable(directory: Files, adds: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Makes staged files durable, which Spark leaves to the operating system: what names them must not outlive them.

    Args:
        directory: Where the files are.
        adds: Their Delta ``add`` actions.

    Returns:
        The actions, each with the SHA-256 of its file. The bytes are read while they are in the page cache and others are being flushed.
    """
    paths = [unquote(add["path"]) for add in adds]
    digesting = [partial(directory.digest, path) for path in paths]
    digests = at_once([partial(directory.sync, *paths), *digesting], _AT_ONCE)[1:] if paths else []
    return [with_digest(add, digest) for add, digest in zip(adds, digests, strict=True)]
