"""Names of a project's datasets in definitions: ``orders``, ``shop.orders``, ``catalog.shop.orders``."""

import re
from dataclasses import dataclass

Identity = tuple[str, ...]
"""Catalog, schema and table in lower case. It is the same for all spellings of a dataset's name."""

_CATALOG, _SCHEMA = "spark_catalog", "default"
_PART = re.compile(r"`((?:[^`]|``)+)`|([^.`]+)")


@dataclass(frozen=True)
class Namespace:
    """The default catalog and schema in the project's specification."""

    catalog: str | None = None
    schema: str | None = None

    def identity(self, name: str) -> Identity:
        parts = parts_of(name)
        default = [self.catalog or _CATALOG, self.schema or _SCHEMA]
        return tuple(part.casefold() for part in (*default[: 3 - len(parts)], *parts))

    def table(self, name: str) -> str:
        """Returns the table's name for Spark's catalog. It has a catalog and a schema only if the user has given them."""
        parts = parts_of(name)
        if len(parts) == 1 and (self.schema or self.catalog):
            parts = [self.schema or _SCHEMA, *parts]
        return ".".join([self.catalog, *parts] if len(parts) == 2 and self.catalog else parts)

    def short(self, name: str) -> str:
        """Returns the name of a table's stage: the table's name, with a schema and a catalog if they are not the project's."""
        parts, default = parts_of(name), [self.catalog or _CATALOG, self.schema or _SCHEMA]
        while len(parts) > 1 and parts[0].casefold() == default[3 - len(parts)].casefold():
            parts = parts[1:]
        return "_".join(parts)


def parts_of(name: str) -> list[str]:
    """Returns the parts of a name without their backticks."""
    return [quoted.replace("``", "`") or plain.strip() for quoted, plain in _PART.findall(name)]
