"""The settings for object stores, read once from the environment and given to each client in its own words.

Three clients access a store: obstore for documents, delta-rs for Delta tables, and S3A for Spark. Each reads the credentials itself, from
the same variables (``AWS_ACCESS_KEY_ID``, ``AWS_SECRET_ACCESS_KEY``, ``AWS_SESSION_TOKEN``) or from the role of the host. So no secret is
in a setting of Spark, in an argument of a process or in a document. Endpoint and region have different names in each client, and are
translated here.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
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


@dataclass(frozen=True)
class ObjectStoreSettings:
    """The address of an object store. It has no credentials."""

    endpoint: str | None = None
    """The URL of the store; None for AWS."""
    region: str | None = None
    bucket_in_host: bool = False
    """True if the bucket's name is a part of the host name. Stores with their own endpoint have it in the path by default."""

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

    def for_delta_rs(self) -> dict[str, str]:
        """Returns the storage options of a Delta table. delta-rs reads all others from the environment."""
        options = {"allow_http": "true"}  # where the endpoint says so
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
                safe="Nothing was started.",
                remedy="Remove the setting, and name the store with AWS_ENDPOINT_URL.",
                setting=_S3A_ENDPOINT,
            )
        return settings | {key: given[key] for key in settings.keys() & given.keys()}


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
            safe="Nothing was read or written.",
            remedy="Correct the variables AWS_… of this process.",
        )
