"""An error of an object store names the credentials and the endpoint of the request, and no secret."""

from dataclasses import replace

import pytest

from spark_jobs.storage.azure_settings import AzureSettings
from spark_jobs.storage.google_settings import GoogleSettings
from spark_jobs.storage.object_store_errors import access_denied, missing_bucket
from spark_jobs.storage.s3_settings import S3Credentials, S3Settings
from spark_jobs.storage.settings_by_bucket import use_settings

CONTAINER = "abfss://lake@flights.dfs.core.windows.net"
LAKE = S3Settings("https://store.example.com", "eu", credentials=S3Credentials("key", "word"))


@pytest.mark.usefixtures("another_store")
def test_a_refusal_names_the_connection_of_the_place_and_its_endpoint_and_no_secret() -> None:
    use_settings("a connection", LAKE, ["s3://lake"])
    use_settings("another", replace(LAKE, endpoint=None), ["s3://pond"])
    for refusal in (access_denied("s3://lake/x", "403"), missing_bucket("s3://lake/x")):
        assert (
            refusal.exists == "https://store.example.com was asked with the credentials of the Airflow connection a connection."
        )
        assert "word" not in f"{refusal} {refusal.evidence}"
        assert "AWS_" not in f"{refusal} {refusal.evidence}", "the environment has nothing to correct"
    assert access_denied("s3://pond/x", "403").exists == "AWS was asked with the credentials of the Airflow connection another."


@pytest.mark.usefixtures("another_store")
def test_a_place_that_no_connection_has_named_was_asked_as_its_only_store_is() -> None:
    use_settings("a connection", LAKE, ["s3://lake"])
    assert access_denied("s3://tables/x", "403").evidence["credentials"] == "the Airflow connection a connection"


@pytest.mark.usefixtures("another_store")
@pytest.mark.parametrize(
    ("place", "environment", "owner"),
    [
        ("s3://lake/x", {"AWS_ACCESS_KEY_ID": "-", "AWS_SECRET_ACCESS_KEY": "-"}, "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY"),
        (f"{CONTAINER}/x", {"AZURE_STORAGE_ACCOUNT_KEY": "-", "AZURE_STORAGE_SAS_TOKEN": "-"}, "AZURE_STORAGE_ACCOUNT_KEY"),
        (f"{CONTAINER}/x", {"AZURE_STORAGE_SAS_TOKEN": "-"}, "AZURE_STORAGE_SAS_TOKEN"),
        ("gs://lake/x", {"GOOGLE_APPLICATION_CREDENTIALS": "-"}, "GOOGLE_APPLICATION_CREDENTIALS"),
        *((place, {}, None) for place in ("s3://lake/x", f"{CONTAINER}/x", "gs://lake/x")),
    ],
)
def test_a_refusal_names_the_variables_of_the_credentials_or_the_role_of_the_host(
    place: str, environment: dict[str, str], owner: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in {*S3Settings.VARIABLES, *AzureSettings.VARIABLES, *GoogleSettings.VARIABLES}:
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    found = access_denied(place, "403").evidence["credentials"]
    assert found == (f"this process's environment ({owner})" if owner else "the role of this host")
