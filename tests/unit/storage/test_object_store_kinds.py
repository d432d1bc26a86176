"""Each URL of an object store has the settings of one store."""

from dataclasses import replace

import pytest

from spark_jobs.protocol.errors import InvalidParameterError
from spark_jobs.storage import object_store_kinds
from spark_jobs.storage.azure_settings import AzureCredentials, AzureSettings
from spark_jobs.storage.google_settings import GoogleSettings
from spark_jobs.storage.object_store_kinds import (
    access_denied,
    is_in_object_store,
    missing_bucket,
    settings_for,
    spark_client_settings,
    use_settings,
)
from spark_jobs.storage.s3_settings import S3Credentials, S3Settings

CONTAINER = "abfss://lake@flights.dfs.core.windows.net"
LAKE = S3Settings("https://store.example.com", "eu", credentials=S3Credentials("key", "word"))


@pytest.fixture
def stores(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process without a configured store, whose environment names another store."""
    monkeypatch.setattr(object_store_kinds, "_settings_by_name", {})
    monkeypatch.setattr(object_store_kinds, "_names_by_bucket", {})
    monkeypatch.setenv("AWS_ENDPOINT_URL", "https://environment.example.com")


@pytest.mark.usefixtures("stores")
def test_a_bucket_is_in_the_store_of_its_connection() -> None:
    assert settings_for("s3://lake/x").endpoint == "https://environment.example.com"
    use_settings("a connection", LAKE, ["s3://lake"])
    assert settings_for("s3://lake/x") is settings_for("s3://tables/x") is LAKE, "with one store all buckets are in it"
    use_settings("the environment's", None, ["s3://pond"])
    assert settings_for("s3://lake/x") is LAKE
    assert settings_for("s3://pond/x").endpoint == "https://environment.example.com"
    with pytest.raises(InvalidParameterError, match="not known which store has s3://tables") as refused:
        settings_for("s3://tables/x")
    assert refused.value.exists == "Known are s3://lake, s3://pond."


@pytest.mark.usefixtures("stores")
def test_newer_keys_of_a_connection_replace_the_older_ones() -> None:
    newer = replace(LAKE, credentials=S3Credentials("key", "newer"))
    use_settings("a connection", LAKE, ["s3://lake"])
    use_settings("a connection", newer, ["s3://lake"])
    assert settings_for("s3://lake/x") is newer
    use_settings("another with the same", newer, ["s3://lake"])
    with pytest.raises(InvalidParameterError, match="s3://lake has other settings in"):
        use_settings("another", LAKE, ["s3://lake"])
    assert "word" not in str(LAKE)


@pytest.mark.usefixtures("stores")
def test_a_connection_to_one_kind_of_store_leaves_the_other_kind_to_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", "http://127.0.0.1:10000/flights")
    use_settings("a connection", LAKE, ["s3://lake"])
    assert settings_for(f"{CONTAINER}/homes") == AzureSettings("http://127.0.0.1:10000/flights")
    known = AzureSettings(credentials=AzureCredentials(account_key="key"))
    use_settings("another", known, [CONTAINER])
    assert settings_for(f"{CONTAINER}/homes") is known
    assert settings_for("s3://lake/x") is LAKE


@pytest.mark.usefixtures("stores")
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


@pytest.mark.usefixtures("stores")
def test_a_place_that_no_connection_has_named_was_asked_as_its_only_store_is() -> None:
    use_settings("a connection", LAKE, ["s3://lake"])
    assert access_denied("s3://tables/x", "403").evidence["credentials"] == "the Airflow connection a connection"


@pytest.mark.usefixtures("stores")
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


def test_spark_has_the_settings_of_every_kind_of_store() -> None:
    given = {"AWS_REGION": "eu-central-1", "AZURE_STORAGE_ACCOUNT_KEY": "key"}
    settings = spark_client_settings(given, {})
    assert settings["spark.hadoop.fs.s3a.endpoint.region"] == "eu-central-1"
    assert settings["spark.hadoop.fs.azure.account.key"] == "${env.AZURE_STORAGE_ACCOUNT_KEY}"


@pytest.mark.parametrize(
    ("url", "is_there"),
    [
        ("s3://lake/x", True),
        (f"{CONTAINER}/x", True),
        ("gs://lake/x", True),
        ("hdfs://lake/x", False),
        ("file:///lake/x", False),
        ("/lake/x", False),
    ],
)
def test_a_url_of_an_object_store_is_known_by_its_scheme(url: str, is_there: bool) -> None:
    assert is_in_object_store(url) == is_there
