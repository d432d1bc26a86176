"""The settings of Google Cloud Storage, in the words of each client: obstore, delta-rs, and Google's connector for Spark.

Each client finds the credentials itself: in the file that ``GOOGLE_APPLICATION_CREDENTIALS`` names, or by the service account of the host.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Self

from spark_jobs.storage.object_store_settings import ObjectStoreSettings, check_endpoint

GOOGLE_FILE_SYSTEM = "com.google.cloud.hadoop.fs.gcs.GoogleHadoopFileSystem"
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
    """The address of a store, and the place of its credentials."""

    SCHEME: ClassVar = "gs"
    SPELLINGS: ClassVar = ("gs",)
    CLOUD: ClassVar = "Google Cloud Storage"
    BUCKET: ClassVar = "bucket"
    VARIABLES: ClassVar = (_FILE, *_OTHERS, _ENDPOINT)
    SECRETS: ClassVar = ("GOOGLE_SERVICE_ACCOUNT_KEY",)
    CREDENTIALS: ClassVar = _FILE
    ENDPOINT: ClassVar = _ENDPOINT

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
