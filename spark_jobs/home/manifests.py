"""Reads the manifests of a home. A corrupt manifest counts as missing."""

import logging
from collections.abc import Iterable

from spark_jobs.home.layout import MANIFESTS, manifest_numbers, manifest_path
from spark_jobs.protocol.documents import Manifest
from spark_jobs.protocol.errors import CorruptDocumentError, NotFoundError
from spark_jobs.protocol.ids import CheckpointId
from spark_jobs.storage.files import Files, read_document

_LOG = logging.getLogger(__name__)


def read_manifest(files: Files, checkpoint: CheckpointId) -> Manifest:
    """Reads the manifest of a checkpoint.

    Raises:
        NotFoundError: There is no such checkpoint.
        CorruptDocumentError: Its manifest is torn, altered, or another checkpoint's.
        UnsupportedFormatError: A newer version wrote it.
    """
    path = manifest_path(checkpoint)
    manifest = read_document(files, path, Manifest)
    if manifest.checkpoint != checkpoint or (manifest.parent is not None and manifest.parent >= checkpoint):
        raise CorruptDocumentError(
            f"{files.url}/{path} says it is checkpoint {manifest.checkpoint} with parent {manifest.parent}.",
            remedy="Restore the file from a copy, or see 'a corrupt document' in docs/troubleshooting.md.",
            path=f"{files.url}/{path}",
            expected=checkpoint,
            found=manifest.checkpoint,
        )
    return manifest


def newest_of(files: Files, numbers: Iterable[CheckpointId]) -> Manifest | None:
    """Returns the newest of these checkpoints that can be used. Logs a warning for each corrupt one that it passes over.

    Raises:
        UnsupportedFormatError: A newer version wrote one that is as new, or newer.
    """
    for number in sorted(numbers, reverse=True):
        try:
            return read_manifest(files, number)
        except NotFoundError:  # discarded since its name was read
            continue
        except CorruptDocumentError as error:
            _LOG.warning("checkpoint %d is skipped: %s", number, error)
    return None


def newest_manifest(files: Files) -> Manifest | None:
    """Returns the newest checkpoint of a home that can be used: one listing, and one read while none is corrupt."""
    return newest_of(files, manifest_numbers(files.names(MANIFESTS)))
