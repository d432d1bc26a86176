"""One configuration of Google Cloud Storage is translated for each client."""

import json

import pytest

from spark_jobs.protocol.errors import InvalidParameterError, RejectedError
from spark_jobs.storage.google_settings import GoogleSettings

EMULATOR = {"STORAGE_EMULATOR_HOST": "http://127.0.0.1:4443"}
FILE = {"GOOGLE_APPLICATION_CREDENTIALS": "/run/secrets/lake.json"}
GS = "spark.hadoop.fs.gs"


def test_without_credentials_each_client_takes_the_service_account_of_the_host() -> None:
    settings = GoogleSettings.from_environment({})
    assert settings.for_obstore() == settings.for_spark({}) == {}
    assert settings.for_delta_rs() == {"allow_http": "true"}


def test_each_client_gets_the_file_with_the_credentials() -> None:
    settings = GoogleSettings.from_environment(FILE)
    assert settings.for_obstore() == {"application_credentials": "/run/secrets/lake.json"}
    assert settings.for_delta_rs()["google_application_credentials"] == "/run/secrets/lake.json"
    assert settings.for_spark({}) == {f"{GS}.auth.type": "APPLICATION_DEFAULT"}, "which reads the variable"


def test_an_emulator_is_used_without_credentials() -> None:
    settings = GoogleSettings.from_environment(EMULATOR | FILE)
    account = json.loads(settings.for_obstore()["service_account_key"])
    assert (account["gcs_base_url"], account["disable_oauth"]) == ("http://127.0.0.1:4443", True)
    assert json.loads(settings.for_delta_rs()["google_service_account_key"]) == account
    assert settings.for_spark({}) == {f"{GS}.auth.type": "UNAUTHENTICATED", f"{GS}.storage.root.url": "http://127.0.0.1:4443/"}


def test_settings_of_the_user_have_priority() -> None:
    given = {f"{GS}.auth.type": "COMPUTE_ENGINE"}
    assert GoogleSettings.from_environment(FILE).for_spark(given) == given


@pytest.mark.parametrize("environment", [EMULATOR, {}])
def test_settings_that_name_another_store_than_the_environment_are_refused(environment: dict[str, str]) -> None:
    with pytest.raises(RejectedError, match="names another store"):
        GoogleSettings.from_environment(environment).for_spark({f"{GS}.storage.root.url": "https://elsewhere.example.com/"})


def test_an_endpoint_that_is_no_url_is_refused() -> None:
    with pytest.raises(InvalidParameterError, match="STORAGE_EMULATOR_HOST is not of the form"):
        GoogleSettings.from_environment({"STORAGE_EMULATOR_HOST": "localhost:4443"})


def test_the_environment_of_a_driver_has_the_same_settings() -> None:
    settings = GoogleSettings(credentials_file="/run/secrets/lake.json")
    assert settings.environment() == FILE
    assert GoogleSettings.from_environment(settings.environment()) == settings
    assert GoogleSettings().environment() == {}
