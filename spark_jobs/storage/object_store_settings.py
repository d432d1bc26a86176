"""The base of the kinds of object stores: what differs between them, and the settings of one store for each client in its own words.

Three clients access a store: obstore for documents, delta-rs for Delta tables, and a Hadoop client for Spark. A driver has the settings in
its environment. Each client reads the credentials from there itself. So no secret is in a setting of Spark, in an argument of a process or
in a document.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self
from urllib.parse import urlsplit

from spark_jobs.protocol.errors import InvalidParameterError, RejectedError

if TYPE_CHECKING:
    from obstore.store import ObjectStore

ENDPOINT_FORM = "of the form https://host:port, without a user"
_NO_URL = re.compile(r"[^!-~]")


class HadoopClient(NamedTuple):
    """Hadoop's client of one kind of object store, which Spark uses."""

    file_system: str
    """The class of the client if no setting of Hadoop names one."""
    module: str
    """The module of Hadoop that has the client."""
    since: tuple[int, ...] = ()
    """The oldest Hadoop whose module can be used."""
    older: str = ""
    """The remedy with an older Hadoop."""


class ObjectStoreSettings(ABC):
    """One kind of object store, and the settings of one store of this kind.

    The class attributes say what differs between the kinds. An instance has the address of a store and its credentials.
    """

    NAME: ClassVar[str]
    """The name of the kind in messages."""
    CLOUD: ClassVar[str]
    """The name of the store that has no endpoint."""

    SCHEME: ClassVar[str]
    """The scheme of URLs in documents."""
    SPELLINGS: ClassVar[tuple[str, ...]]
    """All schemes that users may write, which name the same places."""
    FORM: ClassVar[str]
    """The form of a URL, in words."""
    EXAMPLE: ClassVar[str]
    """The URL of a place."""
    BUCKET: ClassVar[str]
    """The word for a place of objects: bucket or container."""
    BUCKET_NAME: ClassVar[str]
    """A regular expression for the name of a bucket in a URL."""
    IGNORES_CASE: ClassVar[bool] = False
    """True if two names of buckets that differ only in case name the same bucket."""

    HAS_DIRECTORIES: ClassVar[bool] = False
    """True if a store may keep a directory until it is deleted, although no object is below it."""
    COPIES_OBJECTS: ClassVar[bool] = False
    """True if a store copies an object in one request, and answers when the copy is complete."""
    UNNAMEABLE: ClassVar[re.Pattern[str]] = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")
    """Matches a character that no name of an object may have."""
    ENDS_NAMES_WITH_DOTS: ClassVar[bool] = True
    """True if the name of a directory may end with a dot."""

    EXTRA: ClassVar[str]
    """The extra of this package that installs obstore for this kind."""
    HADOOP_CLIENT: ClassVar[HadoopClient]
    """Spark's client."""

    VARIABLE_PREFIX: ClassVar[str]
    """Obstore reads all environment variables whose names begin with this."""
    VARIABLES: ClassVar[tuple[str, ...]]
    """The environment variables that name a store and its credentials."""
    SECRETS: ClassVar[tuple[str, ...]]
    """The variables whose values are secret."""
    CREDENTIALS: ClassVar[str]
    """The variables for the credentials, in words."""
    ENDPOINT: ClassVar[str]
    """The variable for the endpoint."""
    ROLE_PATHS: ClassVar[tuple[str, ...]]
    """The paths under which a host provides its role. They are only requested without credentials in the environment."""
    MISSING_BUCKET: ClassVar[str]
    """The code of the error for a bucket that does not exist."""

    endpoint: str | None
    """The URL of the store; None for that of the cloud."""

    @classmethod
    @abstractmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Self:
        """Returns the settings of an environment.

        Raises:
            InvalidParameterError: An endpoint is not a URL, or contains a user.
        """

    @classmethod
    @abstractmethod
    def credential_variables(cls, environment: Mapping[str, str]) -> tuple[str, ...]:
        """Returns the names of the variables of an environment that have the credentials which the clients use; none with a role."""

    @abstractmethod
    def environment(self) -> dict[str, str]:
        """Returns the variables that give a driver these settings; they take the place of all :attr:`VARIABLES`."""

    @abstractmethod
    def open_obstore(self, bucket: str, config: Any, retries: Any) -> "ObjectStore":
        """Returns obstore's client of a bucket with these settings. What they do not say, obstore reads from the environment.

        Args:
            bucket: Name of the bucket in a URL.
            config: Settings of the client that are the same for all kinds.
            retries: When the client repeats a request.
        """

    @abstractmethod
    def for_delta_rs(self) -> dict[str, str]:
        """Returns the storage options of a Delta table. delta-rs reads all others from the environment."""

    @abstractmethod
    def for_spark(self, given: Mapping[str, str]) -> dict[str, str]:
        """Returns the settings of Spark's client. Settings that the user gives win.

        Args:
            given: The user's settings.

        Raises:
            RejectedError: They name another store than these. Spark would stage rows in a store that is not published.
        """

    def with_given(self, settings: dict[str, str], given: Mapping[str, str], address: str) -> dict[str, str]:
        """Returns settings of Spark's client with those that the user gives in their place.

        Args:
            settings: Settings of the client.
            given: The user's settings.
            address: The setting that names the store.

        Raises:
            RejectedError: See :meth:`for_spark`.
        """
        chosen = given.get(address)
        if chosen is not None and _host_of(chosen) != _host_of(settings.get(address, "")):
            raise RejectedError(
                f"The setting {address} names another store than the environment.",
                exists=f"Spark would write to {chosen}; documents and Delta commits go to {self.endpoint or self.CLOUD}.",
                remedy=f"Remove the setting, and name the store with {self.ENDPOINT}, or in Airflow in the connection of store_conn_id.",
                setting=address,
            )
        return settings | {key: given[key] for key in settings.keys() & given.keys()}


def check_endpoint(name: str, endpoint: str | None) -> None:
    """Refuses an endpoint of the environment that a client would interpret in its own way.

    Args:
        name: Name of the environment variable that has it.
        endpoint: The endpoint, if there is one.

    Raises:
        InvalidParameterError: The endpoint is not a URL, or contains a user. It is not shown, because it may contain a password.
    """
    if endpoint and not is_endpoint(endpoint):
        raise InvalidParameterError(
            f"The settings of the environment for object stores cannot be used: {name} is not {ENDPOINT_FORM}.",
            remedy=f"Correct {name} in the environment of this process.",
        )


def is_endpoint(text: str) -> bool:
    """Returns True for an endpoint that every client interprets in the same way."""
    try:
        found = urlsplit(text)
        return found.scheme in ("http", "https") and bool(found.hostname) and "@" not in found.netloc and not _NO_URL.search(text)
    except ValueError:
        return False


def _host_of(endpoint: str) -> str:
    """Returns an endpoint without its scheme, in one spelling."""
    return endpoint.partition("://")[2].rstrip("/").lower() or endpoint.rstrip("/").lower()
