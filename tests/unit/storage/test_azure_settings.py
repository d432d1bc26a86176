"""One configuration of Azure's storage is translated for each client."""

import pytest

from spark_jobs.protocol.errors import InvalidParameterError, RejectedError
from spark_jobs.storage.azure_settings import AzureCredentials, AzureSettings

EMULATOR = {"AZURE_STORAGE_ENDPOINT": "http://127.0.0.1:10000/devstoreaccount1"}
KEY = {"AZURE_STORAGE_ACCOUNT_KEY": "the-key"}
TOKEN = {"AZURE_STORAGE_SAS_TOKEN": "the-token"}
PRINCIPAL = {"AZURE_CLIENT_ID": "the-client", "AZURE_CLIENT_SECRET": "the-secret", "AZURE_TENANT_ID": "the-tenant"}
ABFS = "spark.hadoop.fs.azure"
ALWAYS = {f"{ABFS}.metrics.collection.enabled": "false"}


def test_each_client_gets_the_endpoint_of_an_emulator_in_its_own_settings() -> None:
    settings = AzureSettings.of(EMULATOR)
    assert settings.for_obstore() == {"endpoint": EMULATOR["AZURE_STORAGE_ENDPOINT"]}
    assert settings.for_delta_rs() == {"allow_http": "true", "azure_storage_endpoint": EMULATOR["AZURE_STORAGE_ENDPOINT"]}
    spark = settings.for_spark({})
    assert spark[f"{ABFS}.abfs.endpoint"] == "127.0.0.1:10000"
    assert spark[f"{ABFS}.always.use.https"] == "false"
    assert spark["spark.hadoop.fs.abfss.impl"] == "org.apache.hadoop.fs.azurebfs.AzureBlobFileSystem"


def test_without_an_endpoint_and_credentials_spark_only_sends_no_metrics() -> None:
    assert AzureSettings.of({}).for_spark({}) == ALWAYS
    assert AzureSettings.of({"AZURE_CLIENT_ID": "an identity of the host"}).for_spark({}) == ALWAYS


def test_a_setting_of_spark_has_the_name_of_a_variable_and_not_its_value() -> None:
    assert AzureSettings.of(KEY).for_spark({}) == ALWAYS | {f"{ABFS}.account.key": "${env.AZURE_STORAGE_ACCOUNT_KEY}"}
    assert AzureSettings.of(TOKEN).for_spark({}) == ALWAYS | {
        f"{ABFS}.account.auth.type": "SAS",
        f"{ABFS}.sas.fixed.token": "${env.AZURE_STORAGE_SAS_TOKEN}",
    }
    assert AzureSettings.of(PRINCIPAL).for_spark({}) == ALWAYS | {
        f"{ABFS}.account.auth.type": "OAuth",
        f"{ABFS}.account.oauth.provider.type": "org.apache.hadoop.fs.azurebfs.oauth2.ClientCredsTokenProvider",
        f"{ABFS}.account.oauth2.client.endpoint": "https://login.microsoftonline.com/${env.AZURE_TENANT_ID}/oauth2/token",
        f"{ABFS}.account.oauth2.client.id": "${env.AZURE_CLIENT_ID}",
        f"{ABFS}.account.oauth2.client.secret": "${env.AZURE_CLIENT_SECRET}",
    }


def test_with_several_credentials_every_client_takes_the_key() -> None:
    assert AzureSettings.of(KEY | TOKEN | PRINCIPAL).variables == ("AZURE_STORAGE_ACCOUNT_KEY",)


def test_settings_of_the_user_have_priority() -> None:
    given = {f"{ABFS}.account.auth.type": "Custom"}
    assert AzureSettings.of(TOKEN).for_spark(given)[f"{ABFS}.account.auth.type"] == "Custom"


@pytest.mark.parametrize("environment", [EMULATOR, {}])
def test_settings_that_name_another_store_than_the_environment_are_refused(environment: dict[str, str]) -> None:
    with pytest.raises(RejectedError, match="names another store"):
        AzureSettings.of(environment).for_spark({f"{ABFS}.abfs.endpoint": "elsewhere.example.com"})


def test_an_endpoint_that_is_no_url_is_refused() -> None:
    with pytest.raises(InvalidParameterError, match="AZURE_STORAGE_ENDPOINT is not of the form") as refused:
        AzureSettings.of({"AZURE_STORAGE_ENDPOINT": "nonsense"})
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
