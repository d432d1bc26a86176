"""Each bucket of an object store has the settings of one store."""

from dataclasses import replace

import pytest

from spark_jobs.protocol.errors import InvalidParameterError
from spark_jobs.storage.azure_settings import AzureCredentials, AzureSettings
from spark_jobs.storage.s3_settings import S3Credentials, S3Settings
from spark_jobs.storage.settings_by_bucket import settings_for, use_settings

CONTAINER = "abfss://lake@flights.dfs.core.windows.net"
LAKE = S3Settings("https://store.example.com", "eu", credentials=S3Credentials("key", "word"))


@pytest.mark.usefixtures("another_store")
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


@pytest.mark.usefixtures("another_store")
def test_newer_keys_of_a_connection_replace_the_older_ones() -> None:
    newer = replace(LAKE, credentials=S3Credentials("key", "newer"))
    use_settings("a connection", LAKE, ["s3://lake"])
    use_settings("a connection", newer, ["s3://lake"])
    assert settings_for("s3://lake/x") is newer
    use_settings("another with the same", newer, ["s3://lake"])
    with pytest.raises(InvalidParameterError, match="s3://lake has other settings in"):
        use_settings("another", LAKE, ["s3://lake"])
    assert "word" not in str(LAKE)


@pytest.mark.usefixtures("another_store")
def test_a_connection_to_one_kind_of_store_leaves_the_other_kind_to_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", "http://127.0.0.1:10000/flights")
    use_settings("a connection", LAKE, ["s3://lake"])
    assert settings_for(f"{CONTAINER}/homes") == AzureSettings("http://127.0.0.1:10000/flights")
    known = AzureSettings(credentials=AzureCredentials(account_key="key"))
    use_settings("another", known, [CONTAINER])
    assert settings_for(f"{CONTAINER}/homes") is known
    assert settings_for("s3://lake/x") is LAKE
