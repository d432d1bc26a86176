"""Secrets are masked in all written text."""

import json
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_jobs.protocol.errors import InterruptedRunError, StorageFullError
from spark_jobs.protocol.masking import masked_error, masking, unmasked
from tests.support.secret_shapes import CORE, SHAPES, WHOLE

SECRET = "p/ä ss\"w'ö&rd\n"


@pytest.mark.parametrize(
    "form", [SECRET, quote(SECRET), quote(SECRET, safe=""), quote_plus(SECRET), json.dumps(SECRET), repr(SECRET)]
)
def test_a_secret_is_masked_plain_and_in_quoted_forms(form: str) -> None:
    text = masking([SECRET])(f"login failed: url=jdbc:x?password={form}&ssl=1")
    assert "***" in text
    assert "&ssl=1" in text
    assert "rd" not in text.replace("password", "")


@pytest.mark.parametrize("shape", SHAPES)
def test_no_part_of_a_secret_of_any_shape_is_left(shape: str) -> None:
    mask, secret = masking([SHAPES[shape]]), SHAPES[shape]
    for text in (secret, quote(secret), json.dumps(secret), json.dumps(json.dumps(secret)), repr(secret), str(secret.encode())):
        assert CORE not in mask(f"no login with {text}")


@pytest.mark.parametrize("shape", sorted(set(SHAPES) - WHOLE))
def test_a_password_inside_a_secret_is_masked_also_alone(shape: str) -> None:
    assert masking([SHAPES[shape]])(f"ada has {CORE} at db") == "ada has *** at db"


@pytest.mark.parametrize("line", ["MIIEvQIBADANBgkqh", f"{CORE}kiG9w0BAQEF"])
def test_a_single_line_of_a_key_is_masked(line: str) -> None:
    for shape in ("a private key", "a key of a service account"):
        assert masking([SHAPES[shape]])(f"bad key: {line}") == "bad key: ***"


@pytest.mark.parametrize("text", ["org.apache.kafka", "username", "https://db/flights", "true", "required", "Bearer"])
def test_words_around_a_secret_stay(text: str) -> None:
    assert masking(SHAPES[shape] for shape in SHAPES if shape != "a word")(f"a {text} b") == f"a {text} b"


def test_the_longer_of_two_overlapping_secrets_is_masked_completely() -> None:
    assert masking(["secret", "secret-and-more"])("secret-and-more, secret") == "***, ***"


@pytest.mark.parametrize("secrets", [[], [""], ["abc"]])
def test_texts_that_are_too_short_for_secrets_are_not_masked(secrets: list[str]) -> None:
    assert masking(secrets) is unmasked


@given(secret=st.text(min_size=4), before=st.text(), after=st.text())
def test_no_secret_is_left_in_a_masked_text(secret: str, before: str, after: str) -> None:
    if "***" not in secret and secret not in f"{before}***{after}":
        assert secret not in masking([secret])(before + secret + after).replace("***", "\0")


def test_an_error_keeps_its_class_and_loses_its_secrets() -> None:
    error = StorageFullError(
        "no s3cret", exists="s3cret", safe="s3cret", remedy="s3cret", lines=["a s3cret"], more={"k": ("s3cret", 7)}
    )
    found = masked_error(error, masking(["s3cret"]))
    assert type(found) is StorageFullError
    assert (found.failed, found.exists, found.safe, found.remedy) == ("no ***", "***", "***", "***")
    assert found.evidence == {"lines": ["a ***"], "more": {"k": ("***", 7)}}


def test_an_error_without_secrets_stays_itself() -> None:
    error = InterruptedRunError("It failed.", remedy="Repeat.", batch=7, versions=(1, 2), lines=["a"])
    assert masked_error(error, masking(["s3cret"])) is error
