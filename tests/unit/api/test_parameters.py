from datetime import date
from pathlib import Path
from typing import Any, Generic, TypeVar

import pytest
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    Secret,
    SecretBytes,
    SecretStr,
    computed_field,
    field_validator,
    model_validator,
)

from spark_jobs import Pipeline
from spark_jobs.api.parameters import BoundParameters, environment_mask
from spark_jobs.protocol.errors import InvalidParameterError, InvalidPipelineError
from tests.support.secret_shapes import CORE, SHAPES

T = TypeVar("T")


class Login(BaseModel):
    user: str
    password: SecretStr


class Params(BaseModel):
    flights: str
    limit: int = 10
    day: date = date(2013, 1, 1)
    carriers: list[str] = []
    token: SecretStr = SecretStr("none")


def bind(model: type[BaseModel] | None, given: Any, **environment: str) -> BoundParameters:
    return Pipeline("flights", params=model).bind(given, environment=environment)


def values(model: type[BaseModel] | None, given: Any, **environment: str) -> Any:
    return bind(model, given, **environment).values


def test_texts_of_a_command_line_become_typed_values() -> None:
    found = values(Params, {"flights": "/in", "limit": "3", "day": "2013-07-04", "carriers": '["AA", "UA"]'})
    assert (found.flights, found.limit, found.day, found.carriers) == ("/in", 3, date(2013, 7, 4), ["AA", "UA"])


def test_typed_values_stay_as_they_are() -> None:
    found = values(Params, {"flights": "/in", "limit": 3, "day": date(2013, 7, 4), "carriers": ["AA"]})
    assert (found.limit, found.day, found.carriers) == (3, date(2013, 7, 4), ["AA"])


def test_a_text_that_looks_like_json_stays_a_text_if_the_field_is_a_text() -> None:
    assert values(Params, {"flights": "[x]", "carriers": "[]"}).flights == "[x]"


def test_an_instance_of_the_model_is_taken_as_it_is() -> None:
    params = Params(flights="/in")
    assert values(Params, params) is params


def test_an_instance_of_another_model_is_refused() -> None:
    with pytest.raises(InvalidParameterError, match="Login was given, but the pipeline takes Params"):
        bind(Params, Login(user="x", password=SecretStr("x")))
    with pytest.raises(InvalidParameterError, match="takes no parameters"):
        bind(None, Params(flights="/in"))


def test_a_strict_model_reads_texts_too() -> None:
    class Strict(BaseModel):
        model_config = ConfigDict(strict=True)
        limit: int

    assert values(Strict, {"limit": "3"}).limit == 3


def test_a_parameter_has_the_name_of_its_field_and_not_of_the_alias() -> None:
    class Aliased(BaseModel):
        flights: str = Field(alias="in")

    bound = bind(Aliased, {"flights": "/in"})
    assert bound.public() == {"flights": "/in"}
    assert list(Pipeline("flights", params=Aliased).schema()["properties"]) == ["flights"]


def test_every_bad_field_is_named_with_its_reason() -> None:
    with pytest.raises(InvalidParameterError) as caught:
        bind(Params, {"limit": "many", "day": "someday"})
    problems = caught.value.evidence["problems"]
    assert [problem.split(":")[0] for problem in problems] == ["flights", "limit", "day"]
    assert "Pipeline 'flights'" in str(caught.value)
    assert caught.value.remedy == "Allowed are: flights, limit, day, carriers."


def test_an_unknown_field_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(InvalidParameterError, match=r"flihgts: unknown\. Did you mean 'flights'\?"):
        bind(Params, {"flihgts": "/in"})


def test_a_model_may_allow_unknown_fields() -> None:
    class Open(BaseModel):
        model_config = ConfigDict(extra="allow")

    assert bind(Open, {"anything": "goes"}).public() == {"anything": "goes"}


def test_a_pipeline_without_parameters_takes_none() -> None:
    assert bind(None, {}).values is None
    assert bind(None, {}).public() == {}
    with pytest.raises(InvalidParameterError, match=r"x: unknown.*takes no parameters"):
        bind(None, {"x": "1"})


def test_a_text_that_is_no_json_is_refused_by_its_field() -> None:
    with pytest.raises(InvalidParameterError, match="carriers: Input should be a valid list"):
        bind(Params, {"flights": "/in", "carriers": "[AA"})


def test_the_error_of_a_models_own_validator_is_reported() -> None:
    class Range(BaseModel):
        first: int

        @field_validator("first")
        @classmethod
        def positive(cls, value: int) -> int:
            if value < 1:
                raise ValueError("starts at 1")
            return value

    with pytest.raises(InvalidParameterError, match="first: Value error, starts at 1"):
        bind(Range, {"first": "0"})


def test_public_values_are_json_without_secrets() -> None:
    bound = bind(Params, {"flights": "/in"}, SPARK_JOBS_PARAM_TOKEN="hush")
    assert bound.public() == {"flights": "/in", "limit": 10, "day": "2013-01-01", "carriers": []}
    assert "hush" not in repr(bound)


def test_public_values_are_a_copy() -> None:
    bound = bind(Params, {"flights": "/in"})
    bound.public().clear()
    assert bound.public()["flights"] == "/in"


def test_a_secret_comes_from_the_environment() -> None:
    assert values(Params, {"flights": "/in"}, SPARK_JOBS_PARAM_TOKEN="hush").token.get_secret_value() == "hush"


def test_a_secret_given_as_text_is_refused_without_showing_it() -> None:
    with pytest.raises(
        InvalidParameterError, match="token: a secret, give it in the environment variable SPARK_JOBS_PARAM_TOKEN"
    ) as caught:
        bind(Params, {"flights": "/in", "token": "hush"})
    assert "hush" not in str(caught.value)


def test_a_program_may_give_a_secret_as_a_secret_string() -> None:
    assert values(Params, {"flights": "/in", "token": SecretStr("hush")}).token.get_secret_value() == "hush"


def test_the_error_of_a_missing_secret_names_its_variable() -> None:
    class Needed(BaseModel):
        token: SecretStr

    with pytest.raises(InvalidParameterError, match="token: missing, set the environment variable SPARK_JOBS_PARAM_TOKEN"):
        bind(Needed, {})


def test_a_bad_secret_is_in_no_message_and_no_traceback() -> None:
    class Picky(BaseModel):
        limit: int
        token: SecretStr = Field(min_length=20)

        @field_validator("token", mode="before")
        @classmethod
        def shown(cls, value: str) -> str:
            raise ValueError(f"bad {value}")

    with pytest.raises(InvalidParameterError, match="token: the secret's value is not allowed") as caught:
        bind(Picky, {"limit": "x"}, SPARK_JOBS_PARAM_TOKEN="hush")
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None
    assert "hush" not in repr(caught.value) + repr(caught.value.evidence)


@pytest.mark.parametrize("kind", [ValueError, AssertionError, RuntimeError, KeyError, ZeroDivisionError, SystemExit])
def test_any_exception_of_a_model_is_a_refusal_without_the_secret_that_it_quotes(kind: type[BaseException]) -> None:
    class Checked(BaseModel):
        token: SecretStr

        @model_validator(mode="after")
        def login(self) -> "Checked":
            raise kind(f"no login with {self.token.get_secret_value()}")

    with pytest.raises(InvalidParameterError, match=r"no login with \*\*\*") as caught:
        bind(Checked, {}, SPARK_JOBS_PARAM_TOKEN=CORE)
    assert (caught.value.__cause__, caught.value.__context__) == (None, None)
    assert CORE not in repr(caught.value) + repr(caught.value.evidence)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_check_of_one_field_cannot_quote_another_that_is_secret(shape: str) -> None:
    class Checked(BaseModel):
        token: SecretStr
        table: str

        @field_validator("table")
        @classmethod
        def known(cls, value: str, info: Any) -> str:
            raise ValueError(f"no table at {info.data['token'].get_secret_value()}")

    with pytest.raises(InvalidParameterError, match="no table at") as caught:
        bind(Checked, {"table": "flights"}, SPARK_JOBS_PARAM_TOKEN=SHAPES[shape])
    assert CORE not in repr(caught.value) + repr(caught.value.evidence)


@pytest.mark.parametrize("given_by", ["environment", "instance"])
def test_a_public_value_that_the_model_makes_of_a_secret_is_refused(given_by: str) -> None:
    class Database(BaseModel):
        password: SecretStr
        address: str = "db"

        @computed_field  # type: ignore[prop-decorator]
        @property
        def url(self) -> str:
            return f"https://ada:{self.password.get_secret_value()}@{self.address}"

    given: Any = Database(password=SecretStr(CORE)) if given_by == "instance" else {}
    with pytest.raises(InvalidParameterError, match="url: it would show a secret") as caught:
        bind(Database, given, SPARK_JOBS_PARAM_PASSWORD=CORE)
    assert CORE not in repr(caught.value) + repr(caught.value.evidence)


def test_a_given_or_default_public_value_may_equal_a_weak_secret() -> None:
    class Database(BaseModel):
        password: SecretStr
        table: str
        schema_name: str = "flights"

    assert bind(Database, {"table": "flights"}, SPARK_JOBS_PARAM_PASSWORD="flights").public()["table"] == "flights"


def test_a_serializer_that_quotes_a_secret_is_refused_without_the_secret() -> None:
    class Odd(BaseModel):
        token: SecretStr
        day: date = date(2013, 1, 1)

        @computed_field  # type: ignore[prop-decorator]
        @property
        def login(self) -> str:
            raise RuntimeError(self.token.get_secret_value())

    with pytest.raises(InvalidParameterError, match=r"RuntimeError: \*\*\*") as caught:
        bind(Odd, {}, SPARK_JOBS_PARAM_TOKEN=CORE)
    assert caught.value.__context__ is None


def test_every_given_secret_is_masked_also_if_the_model_changes_or_drops_it() -> None:
    class Changing(BaseModel):
        token: SecretStr
        made: SecretStr = Field(default_factory=lambda: SecretStr("made"))

        @field_validator("token", mode="before")
        @classmethod
        def short(cls, value: str) -> str:
            return value.strip()

    bound = bind(Changing, {}, SPARK_JOBS_PARAM_TOKEN=" hush ", SPARK_JOBS_PARAM_OTHER="other", HOME="/home")
    assert sorted(bound.secrets) == [" hush ", "hush", "made", "other"]
    assert bind(None, {}, SPARK_JOBS_PARAM_OTHER="other").secrets == ("other",)


def test_a_model_without_a_schema_is_refused() -> None:
    class Odd(BaseModel):
        model_config = ConfigDict(arbitrary_types_allowed=True)
        call: type(print)  # type: ignore[valid-type]

    with pytest.raises(InvalidPipelineError, match="Odd have no JSON schema"):
        Pipeline("flights", params=Odd).schema()


class Box(BaseModel, Generic[T]):
    inside: T


class Tree(BaseModel):
    children: "list[Tree]" = []


@pytest.mark.parametrize(
    ("kind", "secret"),
    [
        (SecretStr, True),
        (SecretBytes, True),
        (SecretStr | None, True),
        (Secret[int], True),
        (list[SecretStr], True),
        (dict[str, SecretBytes], True),
        (Login, True),
        (list[Login] | None, True),
        (Box[SecretStr], True),
        (Box[str], False),
        (Tree, False),
        (str, False),
        (Path | None, False),
    ],
)
def test_a_field_that_holds_a_secret_anywhere_is_secret(kind: Any, secret: bool) -> None:
    class Holder(BaseModel):
        shown: str = ""
        held: kind = None

    assert list(Pipeline("flights", params=Holder).schema()["properties"]) == (["shown"] if secret else ["shown", "held"])


def test_a_secret_of_several_parts_is_json_in_the_environment() -> None:
    class Database(BaseModel):
        login: Login

    bound = bind(Database, {}, SPARK_JOBS_PARAM_LOGIN='{"user": "ada", "password": "hush"}')
    assert bound.public() == {}
    assert getattr(bound.values, "login").password.get_secret_value() == "hush"  # noqa: B009


def test_a_value_that_json_does_not_know_is_refused() -> None:
    class Ratio(BaseModel):
        ratio: float

    with pytest.raises(InvalidParameterError, match="cannot be written as JSON"):
        bind(Ratio, {"ratio": "nan"})


def test_every_given_secret_is_masked_at_any_depth_but_no_default() -> None:
    class Nested(BaseModel):
        login: Login
        keys: dict[str, list[SecretBytes]]
        pin: Secret[int]
        token: SecretStr = SecretStr("none")

    model = Nested(login=Login(user="ann", password=SecretStr("hush")), keys={"a": [SecretBytes(b"key")]}, pin=Secret(1234))
    assert sorted(bind(Nested, model).secrets) == ["1234", "hush", "key"]
    assert "hush" not in repr(bind(Nested, model))


def test_a_pipeline_without_secrets_hides_nothing() -> None:
    assert bind(Params, {"flights": "/in"}).secrets == ()
    assert bind(None, {}).secrets == ()


def test_the_schema_has_types_and_required_parameters_but_no_secrets() -> None:
    class Form(BaseModel):
        flights: str
        limit: int = 10
        token: SecretStr

    found = Pipeline("flights", params=Form).schema()
    assert found["required"] == ["flights"]
    assert found["properties"]["limit"] == {"default": 10, "title": "Limit", "type": "integer"}
    assert "token" not in found["properties"]


def test_a_pipeline_without_parameters_has_an_empty_schema() -> None:
    assert Pipeline("flights").schema() == {"type": "object", "properties": {}}


def test_the_keys_of_a_store_are_masked_as_secret_parameters_are() -> None:
    mask = environment_mask(
        {"AWS_ACCESS_KEY_ID": "AKIA1234", "AWS_SECRET_ACCESS_KEY": "open+sesame", "AWS_SESSION_TOKEN": "for-an-hour"}
    )
    assert mask("AKIA1234 signs with open+sesame for-an-hour") == "AKIA1234 signs with *** ***"


@pytest.mark.parametrize("name", ["AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_ACCESS_KEY", "AZURE_CLIENT_SECRET"])
def test_the_keys_of_an_account_in_azure_are_masked(name: str) -> None:
    assert environment_mask({name: "open+sesame"})("signed with open+sesame") == "signed with ***"


def test_the_signature_of_a_token_for_azure_is_masked_by_itself() -> None:
    mask = environment_mask({"AZURE_STORAGE_SAS_TOKEN": "sv=2021-12-02&sig=open%2Bsesame"})
    assert mask("GET /lake?sig=open%2Bsesame, open+sesame") == "GET /lake?sig=***, ***"
