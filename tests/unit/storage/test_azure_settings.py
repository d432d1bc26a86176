"""One configuration of Azure's storage is translated for each client."""

from traceback import format_exception

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from spark_jobs.protocol.errors import AccessDeniedError, InvalidParameterError, RejectedError
from spark_jobs.publication.delta_rs import open_table
from spark_jobs.storage.azure_settings import AzureCredentials, AzureSettings
from spark_jobs.storage.open import open_place
from spark_jobs.storage.settings_by_bucket import settings_for
from tests.support.azurite import azurite, shared_access_signature

EMULATOR = {"AZURE_STORAGE_ENDPOINT": "http://127.0.0.1:10000/devstoreaccount1"}
KEY = {"AZURE_STORAGE_ACCOUNT_KEY": "the-key"}
TOKEN = {"AZURE_STORAGE_SAS_TOKEN": "the-token"}
PRINCIPAL = {"AZURE_CLIENT_ID": "the-client", "AZURE_CLIENT_SECRET": "the-secret", "AZURE_TENANT_ID": "the-tenant"}
ABFS = "spark.hadoop.fs.azure"
ALWAYS = {f"{ABFS}.metrics.collection.enabled": "false"}


def test_each_client_gets_the_endpoint_of_an_emulator_in_its_own_settings() -> None:
    settings = AzureSettings.from_environment(EMULATOR)
    assert settings.for_obstore() == {"endpoint": EMULATOR["AZURE_STORAGE_ENDPOINT"]}
    assert settings.for_delta_rs() == {"allow_http": "true", "azure_storage_endpoint": EMULATOR["AZURE_STORAGE_ENDPOINT"]}
    spark = settings.for_spark({})
    assert spark[f"{ABFS}.abfs.endpoint"] == "127.0.0.1:10000"
    assert spark[f"{ABFS}.always.use.https"] == "false"
    assert spark["spark.hadoop.fs.abfss.impl"] == "org.apache.hadoop.fs.azurebfs.AzureBlobFileSystem"
    assert spark["spark.hadoop.fs.AbstractFileSystem.abfss.impl"] == "org.apache.hadoop.fs.azurebfs.Abfs"


def test_without_an_endpoint_and_credentials_spark_only_sends_no_metrics() -> None:
    assert AzureSettings.from_environment({}).for_spark({}) == ALWAYS
    assert AzureSettings.from_environment({"AZURE_CLIENT_ID": "an identity of the host"}).for_spark({}) == ALWAYS


def test_a_setting_of_spark_has_the_name_of_a_variable_and_not_its_value() -> None:
    assert AzureSettings.from_environment(KEY).for_spark({}) == ALWAYS | {
        f"{ABFS}.account.key": "${env.AZURE_STORAGE_ACCOUNT_KEY}"
    }
    assert AzureSettings.from_environment(TOKEN).for_spark({}) == ALWAYS | {
        f"{ABFS}.account.auth.type": "SAS",
        f"{ABFS}.sas.fixed.token": "${env.AZURE_STORAGE_SAS_TOKEN}",
    }
    assert AzureSettings.from_environment(PRINCIPAL).for_spark({}) == ALWAYS | {
        f"{ABFS}.account.auth.type": "OAuth",
        f"{ABFS}.account.oauth.provider.type": "org.apache.hadoop.fs.azurebfs.oauth2.ClientCredsTokenProvider",
        f"{ABFS}.account.oauth2.client.endpoint": "https://login.microsoftonline.com/${env.AZURE_TENANT_ID}/oauth2/token",
        f"{ABFS}.account.oauth2.client.id": "${env.AZURE_CLIENT_ID}",
        f"{ABFS}.account.oauth2.client.secret": "${env.AZURE_CLIENT_SECRET}",
    }


@pytest.mark.parametrize(
    ("environment", "variables", "way"),
    [
        (KEY | TOKEN | PRINCIPAL, tuple(KEY), "access_key"),
        ({"AZURE_STORAGE_MASTER_KEY": "the-key"} | TOKEN, ("AZURE_STORAGE_MASTER_KEY",), "access_key"),
        (TOKEN | PRINCIPAL, tuple(TOKEN), "sas_token"),
        (PRINCIPAL | {"AZURE_FEDERATED_TOKEN_FILE": "/token"}, tuple(PRINCIPAL), "client_secret"),
    ],
)
def test_with_several_credentials_every_client_takes_the_one_that_delta_rs_prefers(
    environment: dict[str, str], variables: tuple[str, ...], way: str
) -> None:
    settings = AzureSettings.from_environment(environment)
    assert settings.variables == variables
    assert settings.for_obstore() == {"credential_type": way}
    assert settings.for_delta_rs() == {"allow_http": "true"}


@pytest.mark.azure
def test_obstore_and_delta_rs_take_a_token_even_if_the_environment_has_a_service_principal() -> None:
    with azurite() as place, pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_KEY")
        for name, value in PRINCIPAL.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("AZURE_STORAGE_SAS_TOKEN", shared_access_signature("racwdl"))
        files = open_place(f"{place}/homes")
        files.create("a", b"1")
        assert files.paths() == ["a"]
        files.delete("a")
        write_deltalake(f"{place}/table", pa.table({"id": [1]}), storage_options=settings_for(place).for_delta_rs())
        assert open_table(f"{place}/table").facts.version == 0
        monkeypatch.setenv("AZURE_STORAGE_SAS_TOKEN", shared_access_signature("r"))
        reader = open_place(f"{place}/homes")
        for call in (reader.names, reader.delete, lambda path: reader.create(path, b"1")):
            with pytest.raises(AccessDeniedError, match="the store denies access") as refused:
                call("a")
            assert "sig=" not in "".join(format_exception(refused.value))


def test_settings_of_the_user_have_priority() -> None:
    given = {f"{ABFS}.account.auth.type": "Custom"}
    assert AzureSettings.from_environment(TOKEN).for_spark(given)[f"{ABFS}.account.auth.type"] == "Custom"


@pytest.mark.parametrize("environment", [EMULATOR, {}])
def test_settings_that_name_another_store_than_the_environment_are_refused(environment: dict[str, str]) -> None:
    with pytest.raises(RejectedError, match="names another store"):
        AzureSettings.from_environment(environment).for_spark({f"{ABFS}.abfs.endpoint": "elsewhere.example.com"})


def test_an_endpoint_that_is_no_url_is_refused() -> None:
    with pytest.raises(InvalidParameterError, match="AZURE_STORAGE_ENDPOINT is not of the form") as refused:
        AzureSettings.from_environment({"AZURE_STORAGE_ENDPOINT": "nonsense"})
    assert refused.value.remedy == "Correct AZURE_STORAGE_ENDPOINT in the environment of this process."


@pytest.mark.parametrize(
    ("credentials", "environment"),
    [
        (AzureCredentials(account_key="the-key"), KEY),
        (AzureCredentials(sas_token="the-token"), TOKEN),
        (AzureCredentials(client_id="the-client", client_secret="the-secret", tenant_id="the-tenant"), PRINCIPAL),
    ],
)
def test_the_environment_of_a_driver_has_the_same_settings(credentials: AzureCredentials, environment: dict[str, str]) -> None:
    settings = AzureSettings(EMULATOR["AZURE_STORAGE_ENDPOINT"], credentials=credentials)
    assert settings.environment() == EMULATOR | environment
    assert set(environment.values()) <= set(settings.for_delta_rs().values())
    shown = f"{settings!r} {settings.for_spark({})}"
    assert not [secret for secret in ("the-key", "the-token", "the-secret") if secret in shown]
