"""What Airflow hides is no argument of a task."""

import pytest
from airflow.sdk.log import mask_secret

from airflow_provider.hidden_values import refuse_hidden
from spark_jobs.protocol.errors import InvalidParameterError


def test_arguments_that_airflow_does_not_hide_are_taken() -> None:
    refuse_hidden(
        home="flights", parameters={"password_file": "/x", "token": "plain", "days": [1, None, ("a", {"b": 2.0})]}, conf=None
    )


def test_a_hidden_value_is_found_at_any_depth_and_not_shown() -> None:
    mask_secret("hush-hush")
    given = {"a": "x", "b": [{"url": "x?y=hush-hush&z"}], "hush-hush": 1}
    with pytest.raises(InvalidParameterError) as caught:
        refuse_hidden(home="flights", parameters=given)
    assert caught.value.evidence == {"arguments": ["parameters", "parameters.b.url"]}
    assert "hush-hush" not in str(caught.value)
