"""Names of a project's datasets, as definitions write them: ``orders``, ``shop.orders``, ``catalog.shop.orders``."""

import re
from dataclasses import dataclass

Identity = tuple[str, ...]
"""Catalog, schema and table in lower case: the same for each way to write a dataset's name."""

_CATALOG, _SCHEMA = "spark_catalog", "default"
_PART = re.compile(r"`((?:[^`]|``)+)`|([^.`]+)")


@dataclass(frozen=True)
class Namespace:
    """The catalog and the schema of names that have none, as the project's specification gives them."""

    catalog: str | None = None
    schema: str | None = None

    def identity(self, name: str) -> Identity:
        parts = _parts(name)
        default = [self.catalog or _CATALOG, self.schema or _SCHEMA]
        return tuple(part.casefold() for part in (*default[: 3 - len(parts)], *parts))

    def table(self, name: str) -> str:
        """Returns the table's name for Spark's catalog, with a catalog and a schema only where somebody has given them."""
        parts = _parts(name)
        if len(parts) == 1 and (self.schema or self.catalog):
            parts = [self.schema or _SCHEMA, *parts]
        return ".".join([self.catalog, *parts] if len(parts) == 2 and self.catalog else parts)

    def short(self, name: str) -> str:
        """Returns the name of a table's stage: the table's, behind a schema and a catalog that are not the project's."""
        parts, default = _parts(name), [self.catalog or _CATALOG, self.schema or _SCHEMA]
        while len(parts) > 1 and parts[0].casefold() == default[3 - len(parts)].casefold():
            parts = parts[1:]
        return "_".join(parts)


def _parts(name: str) -> list[str]:
    return [quoted.replace("``", "`") or plain.strip() for quoted, plain in _PART.findall(name)]
