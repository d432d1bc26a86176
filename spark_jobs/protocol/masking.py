"""Takes secrets out of what is written down: an error of a pipeline's own code may quote them."""

import json
import re
from collections.abc import Callable, Iterable
from typing import Any, TypeVar
from urllib.parse import quote, quote_plus

from spark_jobs.protocol.errors import StreamPipelineError

E = TypeVar("E", bound=StreamPipelineError)
Mask = Callable[[str], str]

HIDDEN = "***"
_SHORTEST = 4
"""What is shorter says nothing, and would be found in every other word."""


def unmasked(text: str) -> str:
    """The text as it is: there are no secrets."""
    return text


def masking(secrets: Iterable[str]) -> Mask:
    """What replaces these secrets in a text, as they are and as URLs, JSON and Python quote them."""
    forms = {form for secret in secrets if len(secret) >= _SHORTEST for form in _forms(secret)}
    if not forms:
        return unmasked
    pattern = re.compile("|".join(re.escape(form) for form in sorted(forms, key=len, reverse=True)))
    return lambda text: pattern.sub(HIDDEN, text)


def masked_error(error: E, mask: Mask) -> E:
    """The same error without secrets; the very same one if it has none."""
    texts = {"exists": mask(error.exists), "safe": mask(error.safe), "remedy": mask(error.remedy)}
    failed, evidence = mask(error.failed), _masked(error.evidence, mask)
    if (failed, evidence) == (error.failed, error.evidence) and all(getattr(error, name) == text for name, text in texts.items()):
        return error
    return type(error)(failed, **texts, **evidence)


def _forms(secret: str) -> set[str]:
    return {secret, quote(secret, safe=""), quote(secret), quote_plus(secret), json.dumps(secret)[1:-1], repr(secret)[1:-1]}


def _masked(value: Any, mask: Mask) -> Any:
    if isinstance(value, str):
        return mask(value)
    if isinstance(value, dict):
        return {key: _masked(each, mask) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value)([_masked(each, mask) for each in value])
    return value
