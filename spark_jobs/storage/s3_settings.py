"""S3, and stores that speak its protocol: the settings in the words of each client, which are obstore, delta-rs, and S3A for Spark.

Each client reads the credentials itself, from the same variables (``AWS_ACCESS_KEY_ID``, ``AWS_SECRET_ACCESS_KEY``,
``AWS_SESSION_TOKEN``) or from the role of the host. If an Airflow connection has them, obstore and delta-rs get them from here. Endpoint
and region have different names in each client.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Self

from spark_jobs.storage.object_store_settings import HadoopClient, ObjectStoreSettings, check_endpoint

if TYPE_CHECKING:
    from obstore.store import ObjectStore

_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
"""The variables for the endpoint. The first one that is set counts."""
_REGIONS = ("AWS_REGION", "AWS_DEFAULT_REGION")
_VIRTUAL_HOSTED = "AWS_VIRTUAL_HOSTED_STYLE_REQUEST"
_HADOOP = "spark.hadoop."
_S3A_ENDPOINT = f"{_HADOOP}fs.s3a.endpoint"


@dataclass(frozen=True)
class S3Credentials:
    """An access key."""

    access_key_id: str
    secret_access_key: str = field(repr=False)
    session_token: str | None = field(default=None, repr=False)


@dataclass(frozen=True)
class S3Settings(ObjectStoreSettings):
    """S3 or a store that speaks its protocol."""

    NAME: ClassVar = "S3"
    CLOUD: ClassVar = "AWS"
    SCHEME: ClassVar = "s3"
    SPELLINGS: ClassVar = ("s3", "s3a")
    FORM: ClassVar = "s3://bucket/prefix"
    EXAMPLE: ClassVar = "s3://lake/homes/flights"
    BUCKET: ClassVar = "bucket"
    BUCKET_NAME: ClassVar = r"[a-z0-9][a-z0-9.-]*[a-z0-9]"
    COPIES_OBJECTS: ClassVar = True
    EXTRA: ClassVar = "s3"
    HADOOP_CLIENT: ClassVar = HadoopClient(
        file_system="org.apache.hadoop.fs.s3a.S3AFileSystem",
        module="org.apache.hadoop:hadoop-aws",
        since=(3, 4, 2),
        older="Use Spark 4.1 or newer: before Hadoop 3.4.2 the client of S3 cannot create a file conditionally.",
    )
    VARIABLE_PREFIX: ClassVar = "AWS_"
    VARIABLES: ClassVar = (
        "AWS_ACCESS_KEY_ID",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_SESSION_TOKEN",
        "AWS_PROFILE",
        *_ENDPOINTS,
        *_REGIONS,
        _VIRTUAL_HOSTED,
    )
    SECRETS: ClassVar = ("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
    CREDENTIALS: ClassVar = "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
    ENDPOINT: ClassVar = "AWS_ENDPOINT_URL"
    ROLE_PATHS: ClassVar = ("/latest/api/token", "/latest/meta-data/iam")
    MISSING_BUCKET: ClassVar = "NoSuchBucket"

    endpoint: str | None = None
    """The URL of the store; None for AWS."""
    region: str | None = None
    bucket_in_host: bool = False
    """True if the bucket's name is a part of the host name. Stores with their own endpoint have it in the path by default."""
    credentials: S3Credentials | None = None
    """None: each client finds them itself, in the environment or by the role of the host."""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Self:
        for name in _ENDPOINTS:
            check_endpoint(name, environment.get(name))
        return cls(
            endpoint=_first(environment, _ENDPOINTS),
            region=_first(environment, _REGIONS),
            bucket_in_host=environment.get(_VIRTUAL_HOSTED, "").lower() == "true",
        )

    @classmethod
    def credential_variables(cls, environment: Mapping[str, str]) -> tuple[str, ...]:
        return tuple(name for name in ("AWS_ACCESS_KEY_ID", *cls.SECRETS) if environment.get(name))

    def environment(self) -> dict[str, str]:
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

    def open_obstore(self, bucket: str, config: Any, retries: Any) -> "ObjectStore":
        from obstore.store import S3Store

        found = self.credentials
        keys: Any = found and {
            "access_key_id": found.access_key_id,
            "secret_access_key": found.secret_access_key,
            "token": found.session_token,
            "expires_at": None,
        }
        return S3Store(
            bucket,
            config=config | self.for_obstore(),
            credential_provider=(lambda: keys) if keys else None,  # its keys alone: never a token of the environment
            retry_config=retries,
        )

    def for_obstore(self) -> dict[str, str]:
        """Returns the configuration of obstore's client; what is not in it, obstore reads from the environment."""
        found = {"endpoint": self.endpoint, "region": self.region}
        if self.bucket_in_host:
            found["virtual_hosted_style_request"] = "true"
        return {name: value for name, value in found.items() if value}

    def for_delta_rs(self) -> dict[str, str]:
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
        return self.with_given(settings, given, _S3A_ENDPOINT)


def _first(environment: Mapping[str, str], names: tuple[str, ...]) -> str | None:
    return next((value for name in names if (value := environment.get(name))), None)
