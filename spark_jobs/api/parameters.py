"""Parameters of a pipeline: validated before Spark starts, typed inside functions, secrets kept separate.

A parameter is always called by its field's Python name, even if the model has aliases. A field whose type holds a secret at any depth is
a secret. Its value comes from the environment variable ``SPARK_JOBS_PARAM_<NAME>``, so that it is never in a command line, a request or
a home.
"""

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, get_args, get_origin

from pydantic import BaseModel, Secret, SecretBytes, SecretStr, ValidationError
from pydantic_core import ErrorDetails

from spark_jobs.api.refusals import Place, suggestion
from spark_jobs.protocol.codec import canonical
from spark_jobs.protocol.errors import InvalidParameterError, InvalidPipelineError
from spark_jobs.protocol.masking import Mask, masking
from spark_jobs.storage.object_store_kinds import SECRET_VARIABLES

ENVIRONMENT_PREFIX = "SPARK_JOBS_PARAM_"

Model = type[BaseModel]


@dataclass(frozen=True)
class BoundParameters:
    """Valid values for a pipeline's parameters."""

    values: BaseModel | None
    """The ``params`` argument of functions. None if the pipeline declares no parameters."""
    _public: Mapping[str, Any] = field(repr=False)
    secrets: tuple[str, ...] = field(default=(), repr=False)
    """Texts that must not be written to disk."""

    def public(self) -> dict[str, Any]:
        """Returns the JSON values by field name, without secrets."""
        return dict(self._public)


def environment_mask(environment: Mapping[str, str] = os.environ) -> Mask:
    """Returns the mask of a process. It hides every secret of the environment, even if no pipeline declares it."""
    return masking(environment_secrets(environment))


def environment_secrets(environment: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Returns every secret of the environment: the values of secret parameters, and the keys of an object store."""
    return tuple(value for name, value in environment.items() if name.startswith(ENVIRONMENT_PREFIX) or name in SECRET_VARIABLES)


def secret_fields(model: Model | None) -> tuple[str, ...]:
    """Returns the fields whose values come only from the environment."""
    return tuple(name for name, info in _fields(model).items() if _holds_secret(info.annotation, set()))


def public_fields(model: Model | None) -> tuple[str, ...]:
    """Returns the fields that may be given, shown and stored."""
    secrets = secret_fields(model)
    return tuple(name for name in _fields(model) if name not in secrets)


def schema(model: Model | None) -> dict[str, Any]:
    """Returns the JSON schema of the parameters for a form, without secrets."""
    if model is None:
        return {"type": "object", "properties": {}}
    try:
        document = model.model_json_schema(by_alias=False)
    except Exception as error:  # the model's own code may raise anything
        raise InvalidPipelineError(
            f"The parameters {model.__name__} have no JSON schema: {type(error).__name__}: {error}.",
            remedy="Correct that field's type, or give it a JSON schema.",
        ) from error
    secrets = secret_fields(model)
    document["properties"] = {name: entry for name, entry in document.get("properties", {}).items() if name not in secrets}
    required = [name for name in document.pop("required", []) if name not in secrets]
    return document | ({"required": required} if required else {})


def bind(
    place: Place, model: Model | None, given: Mapping[str, Any] | BaseModel, environment: Mapping[str, str]
) -> BoundParameters:
    """Validates ``given`` and the secrets of ``environment``; see :meth:`spark_jobs.Pipeline.bind`."""
    came_in = environment_secrets(environment)
    if isinstance(given, BaseModel):
        if model is None or not isinstance(given, model):
            wanted = "takes no parameters" if model is None else f"takes {model.__name__}"
            raise _refused(place, [f"{type(given).__name__} was given, but the pipeline {wanted}"], model)
        return _bound(place, model, given, {}, came_in)
    if model is None:
        if given:
            raise _refused(place, [f"{name}: unknown" for name in given], model)
        return BoundParameters(None, MappingProxyType({}), came_in)
    problems = [*_unknown(model, given), *_exposed(model, given)]
    if problems:
        raise _refused(place, problems, model)
    values = _validated(model, dict(given) | _secrets(model, given, environment))
    if isinstance(values, list):
        mask = masking([*came_in, *_secret_texts(given)])
        raise _refused(place, [mask(problem) for problem in values], model)
    return _bound(place, model, values, given, came_in)


def _bound(place: Place, model: Model, values: BaseModel, given: Mapping[str, Any], came_in: tuple[str, ...]) -> BoundParameters:
    fields = _fields(model)
    computed = {name for name, info in fields.items() if info.default_factory is not None}
    hidden = set(secret_fields(model)) & (values.model_fields_set | computed)  # other defaults are in the pipeline's code
    secrets = tuple(dict.fromkeys([*came_in, *(text for name in hidden for text in _secret_texts(getattr(values, name)))]))
    mask = masking(secrets)
    public = _dumped(model, values)
    if isinstance(public, str):
        raise _refused(place, [mask(public)], model)
    known = {name: [given.get(name), fields[name].default if name in fields else None] for name in public}
    shown = [name for name, value in public.items() if _holds(mask, value) and not _holds(mask, known[name])]
    if shown:
        raise _refused(
            place, [f"{name}: it would show a secret but is not a secret itself: make it a SecretStr" for name in shown], model
        )
    return BoundParameters(values, MappingProxyType(public), secrets)


def _dumped(model: Model, values: BaseModel) -> dict[str, Any] | str:
    """Returns the public values as JSON, or a description of the problem."""
    try:
        public = values.model_dump(mode="json", by_alias=False, exclude=set(secret_fields(model)), warnings=False)
        canonical(public)
    except Exception as error:  # noqa: BLE001  # a model's own code may raise anything
        return f"a value cannot be written as JSON ({type(error).__name__}: {error})"
    return public


def _holds(mask: Mask, value: Any) -> bool:
    text = json.dumps(value, default=str, ensure_ascii=False)
    return mask(text) != text


def _validated(model: Model, values: dict[str, Any]) -> BaseModel | list[str]:
    """Returns the model or the problems. Pydantic's error is dropped with its traceback because it shows the values, also secrets."""
    found = _attempt(model, values)
    if isinstance(found, list):
        found = _attempt(model, _decoded(values, found))
    if isinstance(found, list):
        return [_problem(model, error) for error in found]
    return found


def _attempt(model: Model, values: dict[str, Any]) -> BaseModel | list[ErrorDetails]:
    try:
        return model.model_validate(values, strict=False, by_alias=False, by_name=True)
    except ValidationError as error:
        return error.errors(include_url=False, include_context=False, include_input=False)
    except (Exception, SystemExit) as error:  # noqa: BLE001  # a model's own code may raise anything
        return [ErrorDetails(type="raised", loc=(), msg=f"the model raises {type(error).__name__}: {error}", input=None)]


def _decoded(values: Mapping[str, Any], errors: list[ErrorDetails]) -> dict[str, Any]:
    """Returns ``values`` with JSON texts parsed for fields that did not accept the text: lists and objects from a command line."""
    decoded = dict(values)
    for name in {str(error["loc"][0]) for error in errors if error["loc"]}:
        text = decoded.get(name)
        if isinstance(text, str) and text.lstrip()[:1] in ("[", "{"):
            try:
                decoded[name] = json.loads(text)
            except ValueError:
                continue
    return decoded


def _problem(model: Model, error: ErrorDetails) -> str:
    location = error["loc"]
    if not location:
        return error["msg"]
    field, where = str(location[0]), ".".join(str(step) for step in location)
    if field not in secret_fields(model):
        return f"{where}: {error['msg']}"
    if error["type"] == "missing" and len(location) == 1:
        return f"{field}: missing, set the environment variable {_variable(field)}"
    return f"{where}: the secret's value is not allowed ({error['type']})"


def _unknown(model: Model, given: Mapping[str, Any]) -> list[str]:
    if model.model_config.get("extra") == "allow":
        return []
    known = _fields(model)
    return [f"{name}: unknown. {suggestion(str(name), public_fields(model))}" for name in given if name not in known]


def _exposed(model: Model, given: Mapping[str, Any]) -> list[str]:
    """Returns the names of secrets that were given as plain text."""
    return [
        f"{name}: a secret, give it in the environment variable {_variable(name)}"
        for name in secret_fields(model)
        if name in given and not isinstance(given[name], SecretStr | SecretBytes | Secret)
    ]


def _secrets(model: Model, given: Mapping[str, Any], environment: Mapping[str, str]) -> dict[str, str]:
    names = [name for name in secret_fields(model) if name not in given]
    return {name: environment[_variable(name)] for name in names if _variable(name) in environment}


def _variable(name: str) -> str:
    return f"{ENVIRONMENT_PREFIX}{name.upper()}"


def _fields(model: Model | None) -> dict[str, Any]:
    return {} if model is None else dict(model.model_fields)


def _holds_secret(annotation: Any, seen: set[Any]) -> bool:
    """Returns True if a value of this type may contain a secret, at any depth."""
    kinds = [kind for kind in (annotation, get_origin(annotation)) if isinstance(kind, type)]
    if any(issubclass(kind, SecretStr | SecretBytes | Secret) for kind in kinds):
        return True
    if any(_holds_secret(argument, seen) for argument in get_args(annotation)):
        return True
    for kind in kinds:
        if issubclass(kind, BaseModel) and kind not in seen:
            seen.add(kind)
            if any(_holds_secret(info.annotation, seen) for info in kind.model_fields.values()):
                return True
    return False


def _secret_texts(value: Any) -> Iterator[str]:
    """Yields every secret in a value, at any depth, as text."""
    if isinstance(value, SecretStr | SecretBytes | Secret):
        secret = value.get_secret_value()
        yield secret.decode(errors="replace") if isinstance(secret, bytes) else str(secret)
    elif isinstance(value, BaseModel):
        yield from _secret_texts([each for _, each in value])
    elif isinstance(value, Mapping):
        yield from _secret_texts([*value.keys(), *value.values()])
    elif isinstance(value, list | tuple | set | frozenset):
        for each in value:
            yield from _secret_texts(each)


def _refused(place: Place, problems: list[str], model: Model | None) -> InvalidParameterError:
    fields = list(public_fields(model))
    allowed = f"Allowed are: {', '.join(fields)}." if fields else "The pipeline takes no parameters."
    return InvalidParameterError(
        f"{place}: bad parameters: {'; '.join(problems)}.",
        remedy=allowed,
        pipeline=place.pipeline,
        problems=problems,
        fields=fields,
    )
