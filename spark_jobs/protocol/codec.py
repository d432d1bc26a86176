"""The codec that writes and reads durable documents.

Invariants:

1. A document is one canonical JSON object: ``kind``, ``format_version``, ``nonce``, ``body``, ``checksum``. Canonical means sorted keys, no
   spaces, UTF-8, one final newline. A document whose bytes are not canonical was altered.
2. ``checksum`` is the SHA-256 over the canonical form of all other fields. A document is either read completely or reported as corrupt.
3. Unknown fields are kept when a document is written again. A newer ``format_version`` is refused.
4. :func:`encode` can write everything that :func:`decode` returns. Both refuse a document that is too large or too deeply nested, or that
   has a number that other readers do not accept.
5. Encoding the same document twice gives the same bytes, so that a retried create recognizes its own document.

``docs/reference/formats.md`` holds the requirements for readers and writers and changes with this file.
"""

import hashlib
import json
from typing import Any, ClassVar, TypeVar
from uuid import uuid4

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from spark_jobs.protocol.errors import CorruptDocumentError, RejectedError, UnsupportedFormatError


class Part(BaseModel):
    """A piece of a document. Fields that this version does not know are kept."""

    model_config = ConfigDict(extra="allow", frozen=True, allow_inf_nan=False)


class Document(Part):
    """The body of a durable document."""

    kind: ClassVar[str]
    format_version: ClassVar[int] = 1
    """The newest version of this kind that can be read."""
    max_bytes: ClassVar[int] = 16 << 20
    """Maximum size of a document of this kind. A kind that lists files has a larger limit."""
    nonce: str = Field(default_factory=lambda: uuid4().hex, exclude=True)
    """Distinguishes documents with equal bodies. A create that finds its own bytes has succeeded."""

    @property
    def written_version(self) -> int:
        """Returns the version to write: the oldest one whose readers understand the document."""
        return self.format_version


LISTING_MAX_BYTES = 256 << 20
"""Maximum size of a document that lists files of a table, a directory or a state."""
NESTING_MAX = 64
INTEGER_END = 1 << 63
_SHOWN_MAX_CHARACTERS = 1_000
D = TypeVar("D", bound=Document)


def canonical(value: Any) -> bytes:
    """Returns the canonical bytes of a JSON value."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def encode(document: Document) -> bytes:
    """Returns the bytes of ``document``. The same document gives the same bytes.

    Raises:
        RejectedError: No reader would accept it: it is too large or too deeply nested, or JSON cannot express a number or text.
    """
    try:
        envelope = {
            "kind": document.kind,
            "format_version": document.written_version,
            "nonce": document.nonce,
            "body": document.model_dump(mode="json"),
        }
        _check_values(envelope)
        data = canonical(envelope | {"checksum": sha256(canonical(envelope))}) + b"\n"
        _check_size(document, len(data))
    except (ValueError, RecursionError) as error:
        raise RejectedError(
            f"A {document.kind} document cannot be written: {error}.",
            safe="The document was not written.",
            remedy="Use smaller values for parameters, settings or names.",
            kind=document.kind,
        ) from error
    return data


def _check_values(envelope: Any) -> None:
    """Raises a ``ValueError`` if values are nested too deeply or a whole number is too large."""
    level = [envelope]
    for _ in range(NESTING_MAX):
        inner: list[Any] = []
        for value in level:
            if isinstance(value, dict):
                inner.extend(value.values())
            elif isinstance(value, list):
                inner.extend(value)
            elif isinstance(value, int) and not -INTEGER_END <= value < INTEGER_END:
                raise ValueError("a whole number has more than 64 bits")
        level = inner
    if level:
        raise ValueError(f"values are nested more than {NESTING_MAX} deep")


def _check_size(kind: type[Document] | Document, size_bytes: int) -> None:
    if size_bytes > kind.max_bytes:
        raise ValueError(f"{size_bytes:,} bytes are more than the {kind.max_bytes:,} of its kind")


def decode(kind: type[D], data: bytes, path: str) -> D:
    """Reads a complete document.

    Args:
        kind: Expected kind.
        data: Bytes of the whole file.
        path: Path for errors.

    Raises:
        CorruptDocumentError: The bytes differ from those that were written.
        UnsupportedFormatError: A newer version wrote it.
    """
    try:
        _check_size(kind, len(data))
        envelope = json.loads(data)
        _check_values(envelope)
        checksum = envelope.pop("checksum")
        found_kind, version, nonce, body = (envelope[name] for name in ("kind", "format_version", "nonce", "body"))
        sealed = (
            type(version) is int and isinstance(body, dict) and envelope.keys() == {"kind", "format_version", "nonce", "body"}
        )
        whole = sealed and data == canonical(envelope | {"checksum": checksum}) + b"\n"
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        raise _corrupt(kind, path, "one canonical JSON document", f"{len(data)} other bytes ({error})") from error
    expected = sha256(canonical(envelope))
    if checksum != expected or not whole:
        raise _corrupt(kind, path, f"checksum {expected}", f"checksum {checksum}")
    if found_kind != kind.kind:
        raise _corrupt(kind, path, f"kind {kind.kind}", f"kind {found_kind}")
    if version > kind.format_version:
        raise UnsupportedFormatError(
            f"{path} has format version {version}; this version reads up to {kind.format_version}.",
            remedy="Upgrade this package on every host that uses the home.",
            path=path,
            expected=kind.format_version,
            found=version,
        )
    try:
        return kind.model_validate_json(canonical(body | {"nonce": nonce}), strict=True)
    except ValidationError as error:
        raise _corrupt(kind, path, f"the fields of a {kind.kind}", str(error)) from None  # its text quotes the document


def _corrupt(kind: type[Document], path: str, expected: str, found: str) -> CorruptDocumentError:
    found = found[:_SHOWN_MAX_CHARACTERS]
    return CorruptDocumentError(
        f"{path} is not a complete {kind.kind} document: expected {expected}, found {found}.",
        remedy="Restore the file from a copy, or see 'a corrupt document' in docs/troubleshooting.md.",
        path=path,
        expected=expected,
        found=found,
    )
