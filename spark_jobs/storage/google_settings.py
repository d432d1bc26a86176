"""Google Cloud Storage: the settings in the words of each client, which are obstore, delta-rs, and Google's connector for Spark.

Each client finds the credentials itself: in the file that ``GOOGLE_APPLICATION_CREDENTIALS`` names, or by the service account of the host.
If an Airflow connection names the file, obstore and delta-rs get its path from here.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

from spark_jobs.storage.object_store_settings import HadoopClient, ObjectStoreSettings, check_endpoint

if TYPE_CHECKING:
    from obstore.store import ObjectStore

_CONNECTOR = "com.google.cloud.hadoop.fs.gcs.GoogleHadoopFileSystem"
"""The class of Google's connector for Hadoop."""
_FILE = "GOOGLE_APPLICATION_CREDENTIALS"
_OTHERS = ("GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_PATH", "GOOGLE_SERVICE_ACCOUNT_KEY")
"""Further variables that obstore and delta-rs read."""
_ENDPOINT = "STORAGE_EMULATOR_HOST"
_HADOOP = "spark.hadoop.fs.gs."
_ROOT_URL = f"{_HADOOP}storage.root.url"
_AUTHENTICATION = f"{_HADOOP}auth.type"


@dataclass(frozen=True)
class GoogleSettings(ObjectStoreSettings):
    """Google Cloud Storage."""

    NAME: ClassVar = "Google Cloud Storage"
    CLOUD: ClassVar = "Google Cloud Storage"
    SCHEME: ClassVar = "gs"
    SPELLINGS: ClassVar = ("gs",)
    FORM: ClassVar = "gs://bucket/prefix"
    EXAMPLE: ClassVar = "gs://lake/homes/flights"
    BUCKET: ClassVar = "bucket"
    BUCKET_NAME: ClassVar = r"[a-z0-9][a-z0-9._-]*[a-z0-9]"
    EXTRA: ClassVar = "gcs"
    HADOOP_CLIENT: ClassVar = HadoopClient(
        file_system=_CONNECTOR,
        module="org.apache.hadoop:hadoop-gcp",
        since=(3, 5),
        older=f"Give Spark Google's connector, and set spark.hadoop.fs.gs.impl={_CONNECTOR}. Hadoop has a client of its own from 3.5 on, "
        "which is the Hadoop of Spark 4.2.",
    )
    VARIABLE_PREFIX: ClassVar = "GOOGLE_"
    VARIABLES: ClassVar = (_FILE, *_OTHERS, _ENDPOINT)
    SECRETS: ClassVar = ("GOOGLE_SERVICE_ACCOUNT_KEY",)
    CREDENTIALS: ClassVar = _FILE
    ENDPOINT: ClassVar = _ENDPOINT
    ROLE_PATHS: ClassVar = ("/computeMetadata/v1",)
    MISSING_BUCKET: ClassVar = "NoSuchBucket"

    endpoint: str | None = None
    """The URL of an emulator; None for Google's cloud."""
    credentials_file: str | None = None
    """The file with the credentials. None: each client takes the service account of the host."""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Self:
        check_endpoint(_ENDPOINT, environment.get(_ENDPOINT))
        return cls(environment.get(_ENDPOINT) or None, environment.get(_FILE) or None)

    @classmethod
    def credential_variables(cls, environment: Mapping[str, str]) -> tuple[str, ...]:
        return tuple(name for name in (_FILE, *_OTHERS) if environment.get(name))

    def environment(self) -> dict[str, str]:
        return {name: value for name, value in ((_FILE, self.credentials_file), (_ENDPOINT, self.endpoint)) if value}

    def open_obstore(self, bucket: str, config: Any, retries: Any) -> "ObjectStore":
        from obstore.store import GCSStore

        return GCSStore(bucket, config=config | self.for_obstore(), retry_config=retries)

    def for_obstore(self) -> dict[str, str]:
        """Returns the configuration of obstore's client."""
        if self.endpoint:
            nobody = {"client_email": "", "private_key": "", "private_key_id": ""}
            return {"service_account_key": json.dumps({"gcs_base_url": self.endpoint, "disable_oauth": True, **nobody})}
        return {"application_credentials": self.credentials_file} if self.credentials_file else {}

    def for_delta_rs(self) -> dict[str, str]:
        return {"allow_http": "true"} | {f"google_{name}": value for name, value in self.for_obstore().items()}

    def for_spark(self, given: Mapping[str, str]) -> dict[str, str]:
        settings = {_AUTHENTICATION: "APPLICATION_DEFAULT"} if self.credentials_file else {}
        if self.endpoint:
            settings |= {_AUTHENTICATION: "UNAUTHENTICATED", _ROOT_URL: f"{self.endpoint.rstrip('/')}/"}
        return self.with_given(settings, given, _ROOT_URL)
