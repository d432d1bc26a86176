import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_jobs.cli.options import CHECKPOINT_OPTIONS, checkpoint_overrides, pairs, parameters, words
from spark_jobs.protocol.checkpointing import SETTINGS, CheckpointOverrides
from spark_jobs.protocol.errors import InvalidParameterError

names = st.text(st.characters(exclude_characters="=", exclude_categories=["Z", "C"]), min_size=1)


@given(st.dictionaries(names, st.text()))
def test_a_value_may_have_any_characters_also_an_equals_sign(values: dict[str, str]) -> None:
    assert pairs("--param", [f"{name}={value}" for name, value in values.items()]) == values


@pytest.mark.parametrize("text", ["", "days", "=3", " =3"])
def test_a_text_that_is_not_a_pair_is_refused(text: str) -> None:
    with pytest.raises(InvalidParameterError, match="NAME=VALUE"):
        pairs("--param", [text])


def test_a_secret_in_a_malformed_pair_is_not_repeated() -> None:
    with pytest.raises(InvalidParameterError) as refused:
        pairs("--param", ["=hunter2"])
    assert "hunter2" not in str(refused.value)


def test_a_name_that_is_given_twice_is_refused() -> None:
    with pytest.raises(InvalidParameterError, match="twice"):
        pairs("--conf", ["a=1", "a=2"])


def test_a_command_line_without_checkpoint_options_overrides_nothing() -> None:
    assert checkpoint_overrides(dict.fromkeys(CHECKPOINT_OPTIONS)) is None


def test_every_checkpoint_setting_has_an_option() -> None:
    assert tuple(CHECKPOINT_OPTIONS.values()) == SETTINGS
    given = {
        "checkpoint_interval": "1 second",
        "checkpoint_timeout": "1 minute",
        "checkpoint_min_pause": "0 seconds",
        "tolerable_failures": 0,
        "retained": 2,
        "unaligned": False,
        "aligned_timeout": "5 seconds",
        "max_in_flight_bytes": 9,
        "second_copy": True,
    }
    assert checkpoint_overrides({"entry": "flights.py"} | given) == CheckpointOverrides(
        interval_ms=1_000,
        timeout_ms=60_000,
        min_pause_ms=0,
        tolerable_failures=0,
        retained=2,
        unaligned=False,
        aligned_timeout_ms=5_000,
        max_in_flight_bytes=9,
        second_copy=True,
    )


def test_a_list_option_takes_commas_and_may_be_repeated() -> None:
    assert words(["a:b:1, c:d:2", "e:f:3"]) == ["a:b:1", "c:d:2", "e:f:3"]
    assert words(None) == []


@pytest.mark.parametrize(("name", "text"), [("p.json", '{"days": 3, "w": "x"}'), ("p.toml", 'days = 3\nw = "x"\n')])
def test_the_command_line_overrides_parameters_from_a_file(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    assert parameters(["w=y"], tmp_path / name) == {"days": 3, "w": "y"}


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [("p.json", "{", "not JSON"), ("p.toml", "=", "not TOML"), ("p.json", json.dumps([1]), "holds a list")],
)
def test_a_file_that_holds_no_parameters_is_refused(tmp_path: Path, name: str, text: str, reason: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(InvalidParameterError, match=reason):
        parameters(None, tmp_path / name)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidParameterError, match="cannot be read"):
        parameters(None, tmp_path / "p.json")
