import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_jobs import Pipeline
from spark_jobs.api.names import check_name
from spark_jobs.api.refusals import Place, suggestion
from spark_jobs.protocol.errors import InvalidPipelineError

PLACE = Place("flights", "stage", "hourly")


@given(
    st.from_regex(r"[A-Za-z][A-Za-z0-9_]{0,63}", fullmatch=True).filter(
        lambda name: name.lower() not in {"params", "spark", "round"}
    )
)
def test_a_letter_and_then_letters_digits_and_underscores_are_a_name(name: str) -> None:
    assert name.lower() == "pipeline" or check_name(PLACE, name) == name


@given(st.text().filter(lambda name: not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]{0,63}", name)))
def test_any_other_name_is_refused(name: str) -> None:
    with pytest.raises(InvalidPipelineError, match="cannot be a name"):
        check_name(PLACE, name)


@pytest.mark.parametrize("name", ["", "_hidden", "1st", "a-b", "a/b", "a b", "é", "a\n", "x" * 65, None, 3])
def test_names_that_are_unsafe_in_a_file_name_are_refused(name: object) -> None:
    with pytest.raises(InvalidPipelineError, match="cannot be a name"):
        check_name(PLACE, name)


@pytest.mark.parametrize("name", ["params", "spark", "pipeline", "round", "Round", "SPARK"])
def test_names_with_a_meaning_of_their_own_are_reserved(name: str) -> None:
    with pytest.raises(InvalidPipelineError, match="reserved"):
        check_name(PLACE, name)


def test_a_pipeline_may_have_a_name_that_is_reserved_for_its_parts() -> None:
    assert Pipeline("pipeline").name == "pipeline"


def test_a_pipeline_with_an_unsafe_name_is_refused() -> None:
    with pytest.raises(InvalidPipelineError, match=r"'\.\./flights' cannot be a name"):
        Pipeline("../flights")


def test_a_refusal_names_pipeline_part_and_remedy_as_text_and_as_evidence() -> None:
    error = PLACE.refused("it hums.", "Stop it.", volume=3)
    assert str(error) == "Pipeline 'flights', stage 'hourly': it hums. Stop it."
    assert error.remedy == "Stop it."
    assert error.evidence == {"pipeline": "flights", "part": "stage hourly", "volume": 3}


def test_the_nearest_name_is_suggested_in_any_case() -> None:
    assert suggestion("hourli", ["Hourly", "daily"]) == "Did you mean 'Hourly'?"


def test_all_names_are_listed_if_none_is_similar() -> None:
    assert suggestion("zzz", ["hourly", "daily"]) == "Known are: hourly, daily."
    assert suggestion("zzz", []) == "There are none."
