"""Azure Data Lake Storage: the settings in the words of each client, which are obstore, delta-rs, and ABFS for Spark.

The account is in the URL. obstore and delta-rs read the credentials from the environment, or get them from here if an Airflow connection
has them. Spark's client reads them from the environment through Hadoop, which replaces ``${env.NAME}`` in a setting by the value of a
variable. So a setting has the variable's name, never its value.

An environment may have several credentials. All clients use the same: the first in the order of delta-rs, which cannot be changed.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Self
from urllib.parse import urlsplit

from spark_jobs.storage.object_store_settings import HadoopClient, ObjectStoreSettings, check_endpoint

if TYPE_CHECKING:
    from obstore.store import ObjectStore

_WITHOUT_TLS = {
    "spark.hadoop.fs.abfss.impl": "org.apache.hadoop.fs.azurebfs.AzureBlobFileSystem",
    "spark.hadoop.fs.AbstractFileSystem.abfss.impl": "org.apache.hadoop.fs.azurebfs.Abfs",
    "spark.hadoop.fs.azure.networking.library": "JDK_HTTP_URL_CONNECTION",  # the other one does not start without TLS
}
"""Hadoop's client for ``http``: one class for each of Hadoop's two interfaces. Delta writes checksum files with the second one."""
_ENDPOINT = "AZURE_STORAGE_ENDPOINT"
_KEYS = ("AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_ACCESS_KEY", "AZURE_STORAGE_MASTER_KEY")
_TOKENS = ("AZURE_STORAGE_SAS_TOKEN", "AZURE_STORAGE_SAS_KEY")
_PRINCIPAL = ("AZURE_CLIENT_ID", "AZURE_CLIENT_SECRET", "AZURE_TENANT_ID")
_OTHERS = (
    "AZURE_CREDENTIAL_TYPE",
    "AZURE_ENDPOINT",
    "AZURE_STORAGE_TOKEN",
    "AZURE_STORAGE_CLIENT_ID",
    "AZURE_STORAGE_CLIENT_SECRET",
    "AZURE_STORAGE_TENANT_ID",
    "AZURE_STORAGE_AUTHORITY_ID",
)
"""Further variables that obstore and delta-rs read, but Spark's client does not."""
_VARIABLES_OF_PARTS = (_KEYS[0], _TOKENS[0], *_PRINCIPAL)
"""A variable for each part of :class:`AzureCredentials`."""
_HADOOP = "spark.hadoop.fs.azure."
_ABFS_ENDPOINT = f"{_HADOOP}abfs.endpoint"
_AUTHENTICATION = f"{_HADOOP}account.auth.type"


@dataclass(frozen=True)
class AzureCredentials:
    """The key of an account, a shared access signature, or a service principal."""

    account_key: str | None = field(default=None, repr=False)
    sas_token: str | None = field(default=None, repr=False)
    client_id: str | None = None
    client_secret: str | None = field(default=None, repr=False)
    tenant_id: str | None = None

    def named(self, names: tuple[str, str, str, str, str]) -> dict[str, str]:
        """Returns the parts that there are, under the given names."""
        parts = (self.account_key, self.sas_token, self.client_id, self.client_secret, self.tenant_id)
        return {name: part for name, part in zip(names, parts, strict=True) if part}


@dataclass(frozen=True)
class AzureSettings(ObjectStoreSettings):
    """Azure Data Lake Storage."""

    NAME: ClassVar = "Azure Data Lake Storage"
    CLOUD: ClassVar = "Azure"
    SCHEME: ClassVar = "abfss"
    SPELLINGS: ClassVar = ("abfss", "abfs")
    FORM: ClassVar = "abfss://container@account.dfs.core.windows.net/directory"
    EXAMPLE: ClassVar = "abfss://lake@account.dfs.core.windows.net/homes/flights"
    BUCKET: ClassVar = "container"
    BUCKET_NAME: ClassVar = r"[a-z0-9$][a-z0-9-]*@[a-z0-9]+\.dfs\.core\.windows\.net"
    IGNORES_CASE: ClassVar = True
    HAS_DIRECTORIES: ClassVar = True
    UNNAMEABLE: ClassVar = re.compile(r"[\\\x00-\x1f\x7f\ud800-\udfff]")  # Azure takes a backslash for a slash
    ENDS_NAMES_WITH_DOTS: ClassVar = False
    EXTRA: ClassVar = "azure"
    HADOOP_CLIENT: ClassVar = HadoopClient(
        file_system="org.apache.hadoop.fs.azurebfs.SecureAzureBlobFileSystem", module="org.apache.hadoop:hadoop-azure"
    )
    VARIABLE_PREFIX: ClassVar = "AZURE_"
    VARIABLES: ClassVar = (*_KEYS, *_TOKENS, *_PRINCIPAL, *_OTHERS, _ENDPOINT)
    SECRETS: ClassVar = (*_KEYS, *_TOKENS, _PRINCIPAL[1], "AZURE_STORAGE_TOKEN", "AZURE_STORAGE_CLIENT_SECRET")
    CREDENTIALS: ClassVar = f"{_KEYS[0]}, {_TOKENS[0]}, or {', '.join(_PRINCIPAL[:2])} and {_PRINCIPAL[2]}"
    ENDPOINT: ClassVar = _ENDPOINT
    ROLE_PATHS: ClassVar = ("/metadata/identity/oauth2/token",)
    MISSING_BUCKET: ClassVar = "ContainerNotFound"

    endpoint: str | None = None
    """The URL of an emulator, with the account as its path; None for Azure."""
    variables: tuple[str, ...] = ()
    """The variables of the environment with credentials for Spark's client: those of one way to authenticate."""
    credentials: AzureCredentials | None = None
    """None: each client finds them itself, in the environment or by the identity of the host."""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Self:
        check_endpoint(_ENDPOINT, environment.get(_ENDPOINT))
        ways = (*((name,) for name in (*_KEYS, *_TOKENS)), _PRINCIPAL)  # in the order of delta-rs
        found = next((way for way in ways if all(environment.get(name) for name in way)), ())
        return cls(endpoint=environment.get(_ENDPOINT) or None, variables=found)

    @classmethod
    def credential_variables(cls, environment: Mapping[str, str]) -> tuple[str, ...]:
        return cls.from_environment(environment).variables

    def environment(self) -> dict[str, str]:
        found = {_ENDPOINT: self.endpoint} if self.endpoint else {}
        return found | (self.credentials.named(_VARIABLES_OF_PARTS) if self.credentials else {})

    def replaced_by(self, environment: Mapping[str, str]) -> list[str]:
        """Returns the variables of an environment that delta-rs takes instead of these settings: it prefers a key to all else."""
        keys = _KEYS if self.credentials and not self.credentials.account_key else ()
        endpoints = () if self.endpoint else (_ENDPOINT, "AZURE_ENDPOINT")
        return [name for name in (*keys, *endpoints) if environment.get(name)]

    def open_obstore(self, bucket: str, config: Any, retries: Any) -> "ObjectStore":
        from obstore.store import AzureStore

        container, _, host = bucket.partition("@")
        config |= self.for_obstore() | {"account_name": host.partition(".")[0]}
        return AzureStore(container, config=config, retry_config=retries)

    def for_obstore(self) -> dict[str, str]:
        """Returns the configuration of obstore's client; what is not in it, obstore reads from the environment.

        It has one way to authenticate, because the environment may have credentials for several.
        """
        variables = self.credentials.named(_VARIABLES_OF_PARTS) if self.credentials else self.variables
        first = next(iter(variables), None)
        if first is None:
            return self._options()
        way = "access_key" if first in _KEYS else "sas_token" if first in _TOKENS else "client_secret"
        return self._options() | {"credential_type": way}

    def for_delta_rs(self) -> dict[str, str]:
        return {"allow_http": "true"} | {f"azure_storage_{name}": value for name, value in self._options().items()}

    def _options(self) -> dict[str, str]:
        found = {"endpoint": self.endpoint} if self.endpoint else {}
        names = ("account_key", "sas_key", "client_id", "client_secret", "tenant_id")
        return found | (self.credentials.named(names) if self.credentials else {})

    def for_spark(self, given: Mapping[str, str]) -> dict[str, str]:
        # When a driver ends, the client would send metrics, and repeat that for minutes if the network is away.
        settings = {f"{_HADOOP}metrics.collection.enabled": "false"} | self._authentication()
        if self.endpoint:
            address = urlsplit(self.endpoint)
            settings |= {
                _ABFS_ENDPOINT: address.netloc,
                f"{_HADOOP}always.use.https": str(address.scheme == "https").lower(),
                f"{_HADOOP}account.hns.enabled": "false",
                f"{_HADOOP}fns.account.service.type": "BLOB",
            }
            if address.scheme == "http":
                settings |= _WITHOUT_TLS
        return self.with_given(settings, given, _ABFS_ENDPOINT)

    def _authentication(self) -> dict[str, str]:
        """Returns ABFS's settings for the credentials in the environment; empty without any."""
        values = [f"${{env.{name}}}" for name in self.variables]
        if not values:
            return {}
        if self.variables[0] in _KEYS:
            return {f"{_HADOOP}account.key": values[0]}
        if self.variables[0] in _TOKENS:
            return {_AUTHENTICATION: "SAS", f"{_HADOOP}sas.fixed.token": values[0]}
        client, secret, tenant = values
        return {
            _AUTHENTICATION: "OAuth",
            f"{_HADOOP}account.oauth.provider.type": "org.apache.hadoop.fs.azurebfs.oauth2.ClientCredsTokenProvider",
            f"{_HADOOP}account.oauth2.client.endpoint": f"https://login.microsoftonline.com/{tenant}/oauth2/token",
            f"{_HADOOP}account.oauth2.client.id": client,
            f"{_HADOOP}account.oauth2.client.secret": secret,
        }
