"""Removes secrets from written text. An error of a pipeline's own code may quote them.

The mask of a process is made at its edge, from every secret value in its environment, before any code of a pipeline runs.
"""

import base64
import html
import json
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar
from urllib.parse import quote, quote_plus, unquote

from spark_jobs.protocol.errors import StreamPipelineError

E = TypeVar("E", bound=StreamPipelineError)
Mask = Callable[[str], str]

HIDDEN = "***"
_SHORTEST = 4
"""Minimum length of a hidden text. Shorter texts reveal nothing and occur in ordinary words."""
_SHORTEST_LINE = 16
"""Minimum length of a hidden line. A shorter line of a secret may be an ordinary word, as in a JAAS text."""
_SHORTEST_NUMBER = 6
_USER_AND_PASSWORD = re.compile(r"://[^/\s:@]*:([^/\s]+)@")
_SCHEME = re.compile(r"(?i)\b(?:basic|bearer|digest|token|apikey|sharedaccesssignature)\s+(\S+)")
_NAMED = re.compile(
    r"""(?P<name>[\w.$-]+)["']?\s*(?:=\s*|:(?=[\s"'])\s*)(?P<value>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|[^\s"'&;,{}\[\]]+)"""
)
"""A named value in a JAAS text, a URL, a connection string, a header or YAML."""
_PUBLIC_NAMES = frozenset(
    {
        "account", "accountname", "alg", "authority", "auth_uri", "auth_provider_x509_cert_url", "client_email", "client_id",
        "client_x509_cert_url", "database", "dbname", "defaultendpointsprotocol", "endpoint", "endpointsuffix", "host",
        "hostname", "http", "https", "issuer", "kid", "kty", "name", "port", "principal", "project_id", "protocol", "region",
        "schema", "scope", "server", "servicename", "sharedaccesskeyname", "sslmode", "storekey", "sv", "tenant",
        "tenant_id", "token_type", "token_uri", "type", "universe_domain", "uri", "url", "usekeytab", "user", "username",
        "useticketcache", "version", "warehouse",
    }
)  # fmt: skip
"""The names whose values stay visible. Texts that are not secret often contain these values, such as ``kafka``."""
_WORDS = frozenset({"basic", "bearer", "digest", "token", "true", "false", "null", "none"})


def unmasked(text: str) -> str:
    """Returns the text unchanged. It is the mask without secrets."""
    return text


def masking(secrets: Iterable[str]) -> Mask:
    """Returns a function that replaces secrets and their parts in a text, also in the quoting of URLs, JSON, XML and Python."""
    forms = hidden_forms(secrets)
    if not forms:
        return unmasked
    pattern = re.compile("|".join(map(re.escape, forms)))
    return lambda text: pattern.sub(HIDDEN, text)


def hidden_forms(secrets: Iterable[str]) -> list[str]:
    """Returns every text that a mask replaces, the longest first."""
    forms = {form for secret in secrets for piece in hidden_pieces(secret) for form in _forms(piece)}
    return sorted(forms, key=lambda form: (-len(form), form))


def hidden_pieces(secret: str) -> set[str]:
    """Returns a secret and its parts: passwords in a JAAS text, a URL or JSON, lines of a key, and the token after ``Bearer``."""
    return {piece for piece in _pieces(secret) if len(piece) >= _SHORTEST}


def masked_error(error: E, mask: Mask) -> E:
    """Returns the error without secrets; the same object if it has none."""
    texts = {"exists": mask(error.exists), "safe": mask(error.safe), "remedy": mask(error.remedy)}
    failed, evidence = mask(error.failed), masked_value(error.evidence, mask)
    if (failed, evidence) == (error.failed, error.evidence) and all(getattr(error, name) == text for name, text in texts.items()):
        return error
    return type(error)(failed, **texts, **evidence)


def masked_value(value: Any, mask: Mask) -> Any:
    """Returns a JSON value without secrets."""
    if isinstance(value, str):
        return mask(value)
    if isinstance(value, dict):
        return {mask(key) if isinstance(key, str) else key: masked_value(each, mask) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value)([masked_value(each, mask) for each in value])
    return value


def _forms(secret: str) -> set[str]:
    as_json, quoted = json.dumps(secret)[1:-1], (quote(secret, safe=""), quote(secret), quote_plus(secret))
    return {
        *(secret, *quoted, *(re.sub("%..", lambda code: code[0].lower(), each) for each in quoted)),
        *(as_json, json.dumps(as_json)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1]),
        *(repr(secret)[1:-1], repr(secret.encode(errors="replace"))[2:-1], html.escape(secret)),
        base64.b64encode(secret.encode(errors="replace")).decode().rstrip("="),
    }


def _pieces(secret: str) -> Iterator[str]:
    yield secret
    for part in {part.strip() for part in _parts(secret)}:
        if part != secret and len(part) >= (_SHORTEST_NUMBER if part.isdigit() else _SHORTEST) and part.lower() not in _WORDS:
            yield from _pieces(part)


def _parts(secret: str) -> Iterator[str]:
    leaves = _leaves_of_json(secret)
    if leaves is not None:
        yield from leaves
        return
    lines = secret.splitlines()
    if len(lines) > 1:
        yield from (line for line in lines if len(line.strip()) >= _SHORTEST_LINE and not line.startswith("-----"))
    yield from _USER_AND_PASSWORD.findall(secret)
    yield from _SCHEME.findall(secret)
    for found in _NAMED.finditer(secret):
        value = found["value"]
        if not _is_public(found["name"]):
            yield re.sub(r"\\(.)", r"\1", value[1:-1]) if value[0] in "\"'" else value
    yield from _login_in_base64(secret)
    if re.fullmatch(r"[^\s:/]+(:[^\s:/]*){0,3}:[^\s:]+", secret):  # user:password, or a line of .pgpass
        yield secret.rpartition(":")[2]
    if "%" in secret:
        yield unquote(secret)


def _leaves_of_json(secret: str) -> list[str] | None:
    """Returns the values in a JSON object or list, or None if the secret is neither."""
    try:
        document = json.loads(secret)
        return list(_leaves("", document)) if isinstance(document, dict | list) else None
    except (ValueError, RecursionError):
        return None


def _leaves(name: str, value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, each in value.items():
            yield from _leaves(key, each)
    elif isinstance(value, list):
        for each in value:
            yield from _leaves(name, each)
    elif isinstance(value, str | int | float) and not _is_public(name):
        yield str(value)


def _is_public(name: str) -> bool:
    return name.rpartition(".")[2].lower() in _PUBLIC_NAMES


def _login_in_base64(secret: str) -> Iterator[str]:
    try:
        decoded = base64.b64decode(secret, validate=True).decode()
    except ValueError:
        return
    if re.fullmatch(r"[!-~]+:[!-~]+", decoded):
        yield decoded
