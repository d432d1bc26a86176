"""Errors of object stores that name the credentials and the endpoint of a request. Spark's client and obstore share them."""

from spark_jobs.protocol.errors import AccessDeniedError, NotFoundError
from spark_jobs.storage.object_store_kinds import object_store_kind
from spark_jobs.storage.settings_by_bucket import connection_of, credentials_and_endpoint


def access_denied(place: str, reason: str) -> AccessDeniedError:
    """Returns the error of a place to which a store denies access. It names the owner of the credentials, never their values.

    Raise it without its cause: the store's answer may contain the signed text, with a session token.
    """
    kind, (owner, endpoint) = object_store_kind(place), credentials_and_endpoint(place)
    ways = "" if connection_of(place) else f" ({kind.CREDENTIALS}, or a role of the host)"
    return AccessDeniedError(
        f"{place}: the store denies access. {reason}",
        exists=f"{endpoint} was asked with the credentials of {owner}.",
        remedy=f"Name a place in a {kind.BUCKET} of these credentials; or give them the rights to list, read, write and delete there"
        f"{ways}.",
        path=place,
        endpoint=endpoint,
        credentials=owner,
    )


def missing_bucket(place: str) -> NotFoundError:
    """Returns the error of a place whose bucket or container does not exist in the store."""
    kind, (owner, endpoint) = object_store_kind(place), credentials_and_endpoint(place)
    return NotFoundError(
        f"{place}: the {kind.BUCKET} does not exist.",
        exists=f"{endpoint} was asked with the credentials of {owner}.",
        remedy=f"Correct the {kind.BUCKET}, or create it. If it is in another store, correct the endpoint "
        f"({connection_of(place) or kind.ENDPOINT}) and the credentials.",
        path=place,
        endpoint=endpoint,
        credentials=owner,
    )
