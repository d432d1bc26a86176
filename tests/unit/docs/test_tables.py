"""The reference of tables matches the tests."""

from spark_jobs.publication.features import APPEND_FEATURES, DELTA_RS_FEATURES, SPARK_FEATURES
from tests.support.table_features import DELTA_RS, FEATURES
from tests.support.table_page import PAGE, made


def test_the_page_has_the_table_that_is_generated_from_the_tests() -> None:
    assert PAGE.read_text() == made(PAGE.read_text()), "python -m tests.support.table_page"


def test_every_accepted_table_feature_is_tested() -> None:
    tried = {name for feature in FEATURES for name in feature.protocol}
    assert tried == SPARK_FEATURES


def test_every_table_feature_that_needs_no_jvm_is_tested_without_one() -> None:
    appended = {name for feature in FEATURES if feature.appended_by is DELTA_RS for name in feature.protocol}
    replaced = {name for feature in FEATURES if feature.publisher is DELTA_RS for name in feature.protocol}
    assert appended == APPEND_FEATURES
    assert replaced == DELTA_RS_FEATURES
