"""The settings for object stores, known once and given to each client in its own words.

Three clients access a store: obstore for documents, delta-rs for Delta tables, and S3A for Spark. A driver has the settings in its
environment. Each client reads the credentials itself, from the same variables (``AWS_ACCESS_KEY_ID``, ``AWS_SECRET_ACCESS_KEY``,
``AWS_SESSION_TOKEN``) or from the role of the host. So no secret is in a setting of Spark, in an argument of a process or in a document.
Endpoint and region have different names in each client, and are translated here.

A process of Airflow may have the settings of several stores, one for each connection: see :func:`use_store`.
"""

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from threading import Lock
from urllib.parse import urlsplit

from spark_jobs.protocol.errors import InvalidParameterError, RejectedError

S3_FILE_SYSTEM = "org.apache.hadoop.fs.s3a.S3AFileSystem"
"""Hadoop's client of S3, under both of its schemes."""
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
"""The variables for the endpoint. The first one that is set counts."""
_REGIONS = ("AWS_REGION", "AWS_DEFAULT_REGION")
_VIRTUAL_HOSTED = "AWS_VIRTUAL_HOSTED_STYLE_REQUEST"
_NO_URL = re.compile(r"[^!-~]")
_HADOOP = "spark.hadoop."
_S3A_ENDPOINT = f"{_HADOOP}fs.s3a.endpoint"


VARIABLES = (
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_PROFILE",
    *_ENDPOINTS,
    *_REGIONS,
    _VIRTUAL_HOSTED,
)
"""The environment variables that name a store and its credentials."""


@dataclass(frozen=True)
class Credentials:
    """The access key of a store."""

    access_key_id: str
    secret_access_key: str = field(repr=False)
    session_token: str | None = field(default=None, repr=False)


@dataclass(frozen=True)
class ObjectStoreSettings:
    """The address of an object store, and its credentials."""

    endpoint: str | None = None
    """The URL of the store; None for AWS."""
    region: str | None = None
    bucket_in_host: bool = False
    """True if the bucket's name is a part of the host name. Stores with their own endpoint have it in the path by default."""
    credentials: Credentials | None = None
    """None: each client finds them itself, in the environment or by the role of the host."""

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> "ObjectStoreSettings":
        """Returns the settings of an environment.

        Raises:
            InvalidParameterError: An endpoint is not a URL, or contains a user.
        """
        for name in _ENDPOINTS:
            _check_endpoint(name, environment.get(name))
        return cls(
            endpoint=_first(environment, _ENDPOINTS),
            region=_first(environment, _REGIONS),
            bucket_in_host=environment.get(_VIRTUAL_HOSTED, "").lower() == "true",
        )

    def environment(self) -> dict[str, str]:
        """Returns the variables that give a driver these settings; they take the place of all :data:`VARIABLES`."""
        found = {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_REGION": self.region,
            _VIRTUAL_HOSTED: "true" if self.bucket_in_host else None,
        }
        if self.credentials is not None:
            found["AWS_ACCESS_KEY_ID"] = self.credentials.access_key_id
            found["AWS_SECRET_ACCESS_KEY"] = self.credentials.secret_access_key
            found["AWS_SESSION_TOKEN"] = self.credentials.session_token
        return {name: value for name, value in found.items() if value}

    def for_obstore(self) -> dict[str, str]:
        """Returns the configuration of obstore's client; what is not in it, obstore reads from the environment."""
        found = {"endpoint": self.endpoint, "region": self.region}
        if self.bucket_in_host:
            found["virtual_hosted_style_request"] = "true"
        return {name: value for name, value in found.items() if value}

    def for_delta_rs(self) -> dict[str, str]:
        """Returns the storage options of a Delta table. delta-rs reads all others from the environment."""
        options = {"allow_http": "true"}  # where the endpoint says so
        if self.credentials is not None:
            options["aws_access_key_id"] = self.credentials.access_key_id
            options["aws_secret_access_key"] = self.credentials.secret_access_key
            if self.credentials.session_token:
                options["aws_session_token"] = self.credentials.session_token
        if self.bucket_in_host:
            options["aws_virtual_hosted_style_request"] = "true"
        if self.endpoint:
            options["aws_endpoint"] = self.endpoint
        if self.region:
            options["aws_region"] = self.region
        return options

    def for_spark(self, given: Mapping[str, str]) -> dict[str, str]:
        """Returns Spark's settings for S3. Settings that the user gives win.

        Args:
            given: The user's settings.

        Raises:
            RejectedError: They name another store than the environment. Spark would stage rows in a store that is not published.
        """
        # The default stream logs every missing file as an error. A new table has none of its files.
        settings = {f"{_HADOOP}fs.s3a.input.stream.type": "classic"}
        if self.region:
            settings[f"{_HADOOP}fs.s3a.endpoint.region"] = self.region
        if self.endpoint:
            settings |= {
                _S3A_ENDPOINT: self.endpoint,
                f"{_HADOOP}fs.s3a.path.style.access": "false" if self.bucket_in_host else "true",
                f"{_HADOOP}fs.s3a.connection.ssl.enabled": str(self.endpoint.startswith("https:")).lower(),
            }
        chosen = given.get(_S3A_ENDPOINT)
        if chosen is not None and _host(chosen) != _host(self.endpoint or ""):
            raise RejectedError(
                f"The setting {_S3A_ENDPOINT} names another store than the environment.",
                exists=f"Spark would write to {chosen}; documents and Delta commits go to {self.endpoint or 'AWS'}.",
                remedy="Remove the setting, and name the store with AWS_ENDPOINT_URL.",
                setting=_S3A_ENDPOINT,
            )
        return settings | {key: given[key] for key in settings.keys() & given.keys()}


_lock = Lock()
_of_names: dict[str, ObjectStoreSettings | None] = {}
"""By its name the settings of a store; None: those of the environment."""
_of_buckets: dict[str, str] = {}
"""By bucket the name of its store."""


def use_store(name: str, settings: ObjectStoreSettings | None, buckets: Iterable[str]) -> None:
    """Gives this process the settings of a store; again with newer ones.

    A bucket that nobody has named is in the store of all others, or in that of the environment if there is none.

    Args:
        name: The store's: the Airflow connection that has its settings.
        settings: Of the store; None: those of the environment.
        buckets: Buckets that are there.

    Raises:
        InvalidParameterError: A bucket is in another store, by another name.
    """
    with _lock:
        for bucket in buckets:
            other = _of_buckets.get(bucket, name)
            if other != name and _of_names[other] != settings:
                raise InvalidParameterError(
                    f"The bucket {bucket} has other settings in {other} than in {name}.",
                    exists="One process has one store, and one owner of credentials, for a bucket.",
                    remedy="Name the same store in all connections of pipelines that have this bucket.",
                    bucket=bucket,
                )
            _of_buckets[bucket] = name
        _of_names[name] = settings


def store_of(bucket: str) -> ObjectStoreSettings:
    """Returns the settings of the store that has a bucket.

    Raises:
        InvalidParameterError: Several stores were named, and the bucket for none of them; or the environment says what cannot be used.
    """
    with _lock:
        named = {_of_names[_of_buckets[bucket]]} if bucket in _of_buckets else set(_of_names.values())
    if len(named) > 1:
        raise InvalidParameterError(
            f"It is not known which store has the bucket {bucket}: the connections of this process name several.",
            exists=f"Known are the buckets {', '.join(sorted(_of_buckets))}.",
            remedy="Keep tables in a bucket of their connection's roots; or name the bucket in its savepoint_root, too.",
            bucket=bucket,
        )
    return (named.pop() if named else None) or ObjectStoreSettings.of(os.environ)


def _first(environment: Mapping[str, str], names: tuple[str, ...]) -> str | None:
    return next((value for name in names if (value := environment.get(name))), None)


def _host(endpoint: str) -> str:
    return endpoint.partition("://")[2].rstrip("/").lower() or endpoint.rstrip("/").lower()


def _check_endpoint(name: str, endpoint: str | None) -> None:
    if not endpoint:
        return
    try:
        found = urlsplit(endpoint)
        usable = found.scheme in ("http", "https") and found.hostname and "@" not in found.netloc and not _NO_URL.search(endpoint)
    except ValueError:
        usable = False
    if not usable:  # not shown, because it may contain a password
        raise InvalidParameterError(
            f"The environment's settings for object stores cannot be used: {name} is not of the form https://host:port, without a user.",
            remedy="Correct the variables AWS_… of this process.",
        )
