"""The kinds of object stores: S3, Azure Data Lake Storage and Google Cloud Storage.

Each kind has a class of its own, which says all that differs from the other kinds. The scheme of a URL chooses the class.
"""

from collections.abc import Mapping
from urllib.parse import urlsplit

from spark_jobs.storage.azure_settings import AzureSettings
from spark_jobs.storage.google_settings import GoogleSettings
from spark_jobs.storage.object_store_settings import ObjectStoreSettings
from spark_jobs.storage.s3_settings import S3Settings

KINDS: tuple[type[ObjectStoreSettings], ...] = (S3Settings, AzureSettings, GoogleSettings)
KIND_BY_SPELLING: Mapping[str, type[ObjectStoreSettings]] = {spelling: kind for kind in KINDS for spelling in kind.SPELLINGS}
"""The kind of an object store, by each scheme that users may write for a place in it."""
CANONICAL_SCHEMES: Mapping[str, str] = {spelling: kind.SCHEME for spelling, kind in KIND_BY_SPELLING.items()}
"""The scheme in documents, by each scheme that users may write for a place in an object store."""
SECRET_VARIABLES = frozenset(name for kind in KINDS for name in kind.SECRETS)
"""The environment variables with the secrets of stores."""


def is_in_object_store(url: str) -> bool:
    """Returns True for a URL of an object store, in the spelling of documents."""
    return urlsplit(url).scheme in CANONICAL_SCHEMES.values()


def object_store_kind(url: str) -> type[ObjectStoreSettings]:
    """Returns the kind of the object store that a URL names."""
    return KIND_BY_SPELLING[urlsplit(url).scheme]


def bucket_of(url: str) -> str:
    """Returns the bucket of a URL, such as ``s3://bucket``, or its container."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def spark_client_settings(environment: Mapping[str, str], given: Mapping[str, str]) -> dict[str, str]:
    """Returns the settings of Spark's clients for the stores that an environment names. Settings that the user gives win.

    Raises:
        InvalidParameterError: An endpoint is not a URL, or contains a user.
        RejectedError: The user's settings name another store than the environment.
    """
    return {name: value for kind in KINDS for name, value in kind.from_environment(environment).for_spark(given).items()}
