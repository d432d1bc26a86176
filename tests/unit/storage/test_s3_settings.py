"""One configuration of S3 is translated for each client."""

from dataclasses import replace

import pytest

from spark_jobs.protocol.errors import InvalidParameterError, RejectedError
from spark_jobs.protocol.spark_settings import is_shown
from spark_jobs.storage.s3_settings import S3Credentials, S3Settings

SECRETS = {"AWS_ACCESS_KEY_ID": "the-key", "AWS_SECRET_ACCESS_KEY": "the-secret", "AWS_SESSION_TOKEN": "the-token"}
ENDPOINT = {"AWS_ENDPOINT_URL": "http://127.0.0.1:9000", "AWS_REGION": "eu-central-1"}
S3A = "spark.hadoop.fs.s3a"


def test_each_client_gets_endpoint_and_region_in_its_own_settings() -> None:
    settings = S3Settings.from_environment(ENDPOINT)
    assert settings.for_delta_rs() == {
        "allow_http": "true",
        "aws_endpoint": "http://127.0.0.1:9000",
        "aws_region": "eu-central-1",
    }
    assert settings.for_spark({}) == {
        f"{S3A}.input.stream.type": "classic",
        f"{S3A}.endpoint": "http://127.0.0.1:9000",
        f"{S3A}.endpoint.region": "eu-central-1",
        f"{S3A}.path.style.access": "true",
        f"{S3A}.connection.ssl.enabled": "false",
    }


def test_clients_without_an_endpoint_use_aws_with_the_role_of_the_host() -> None:
    settings = S3Settings.from_environment({})
    assert settings.for_delta_rs() == {"allow_http": "true"}
    assert settings.for_spark({}) == {f"{S3A}.input.stream.type": "classic"}


def test_no_secret_is_in_a_setting() -> None:
    settings = S3Settings.from_environment(ENDPOINT | SECRETS)
    said = str([settings, settings.for_spark({}), settings.for_delta_rs()])
    assert [secret for secret in SECRETS.values() if secret in said] == []
    assert all(is_shown(name) for name in settings.for_spark({}) if not name.endswith("input.stream.type"))


def test_the_more_specific_variable_counts() -> None:
    given = {"AWS_ENDPOINT_URL_S3": "https://s3.example.com", "AWS_DEFAULT_REGION": "eu-west-1"}
    settings = S3Settings.from_environment(ENDPOINT | given)
    assert (settings.endpoint, settings.region) == ("https://s3.example.com", "eu-central-1")
    assert settings.for_spark({})[f"{S3A}.connection.ssl.enabled"] == "true"


def test_a_store_may_have_bucket_names_in_host_names() -> None:
    settings = S3Settings.from_environment(ENDPOINT | {"AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "true"})
    assert settings.for_spark({})[f"{S3A}.path.style.access"] == "false"


def test_settings_of_the_user_have_priority() -> None:
    given = {f"{S3A}.path.style.access": "false", f"{S3A}.endpoint": "127.0.0.1:9000/"}
    settings = S3Settings.from_environment(ENDPOINT).for_spark(given)
    assert given.items() <= settings.items()


@pytest.mark.parametrize("environment", [ENDPOINT, {}])
def test_settings_that_name_another_store_than_the_environment_are_refused(environment: dict[str, str]) -> None:
    with pytest.raises(RejectedError, match="names another store") as refused:
        S3Settings.from_environment(environment).for_spark({f"{S3A}.endpoint": "https://elsewhere.example.com"})
    assert refused.value.remedy


@pytest.mark.parametrize("endpoint", ["nonsense", "ftp://host", "https://user:hidden@host", "http://[hidden"])
def test_an_endpoint_that_is_no_url_is_refused_and_not_shown(endpoint: str) -> None:
    with pytest.raises(InvalidParameterError, match="AWS_ENDPOINT is not of the form") as refused:
        S3Settings.from_environment({"AWS_ENDPOINT": endpoint})
    assert "hidden" not in str(refused.value)


LAKE = S3Settings("https://store.example.com", "eu", credentials=S3Credentials("key", "word"))


def test_the_environment_of_a_driver_has_the_same_settings() -> None:
    assert S3Settings.from_environment(LAKE.environment()) == replace(LAKE, credentials=None)
    assert LAKE.for_delta_rs()["aws_secret_access_key"] == LAKE.environment()["AWS_SECRET_ACCESS_KEY"] == "word"
    assert S3Settings().environment() == {}
    hosted = replace(LAKE, bucket_in_host=True)
    assert S3Settings.from_environment(hosted.environment()).bucket_in_host
    assert hosted.for_delta_rs()["aws_virtual_hosted_style_request"] == hosted.for_obstore()["virtual_hosted_style_request"]
