"""Renders the templates of the pages."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from rich.filesize import decimal

from spark_jobs.protocol.documents import InputLag
from spark_jobs.protocol.visible import visible


def _shown(value: Any) -> Any:
    """Makes hidden characters in foreign text visible, such as those that reverse the direction of a line. Escaping follows."""
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


templates = Environment(
    loader=PackageLoader("airflow_provider.pages"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    finalize=_shown,
)


def duration(seconds: float) -> str:
    """Returns a time such as ``0.25 s``, ``12 s``, ``3 min`` or ``2 h``."""
    if seconds < 10:
        return f"{seconds:.2f} s"
    for limit, length, unit in ((120, 1, "s"), (7_200, 60, "min"), (172_800, 3_600, "h")):
        if seconds < limit:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds / 86_400:.0f} days"


def age(moment: datetime) -> str:
    return f"{duration(max(round((datetime.now(UTC) - moment).total_seconds()), 0)).replace('.00', '')} ago"


def watermark(watermark_ms: int | None) -> str:
    if watermark_ms is None or watermark_ms <= 0:
        return "none yet"
    try:
        return datetime.fromtimestamp(watermark_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (OverflowError, ValueError, OSError):
        return "end of time"


def lag(found: InputLag) -> str:
    """Returns the lag of one input, such as ``1,234 rows, 5.0 kB`` or ``3 versions``."""
    counts = ((found.rows, "row"), (found.versions, "version"), (found.files, "file"))
    parts = [f"{count:,} {unit}{'' if count == 1 else 's'}" for count, unit in counts if count is not None]
    sizes = [] if found.size_bytes is None else [decimal(found.size_bytes)]
    return ", ".join([*parts, *sizes]).replace(" ", "\u00a0").replace(",\u00a0", ", ") or "not known"


templates.filters |= {
    "age": age,
    "lag": lag,
    "duration": duration,
    "moment": lambda time: time.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S"),
    "number": lambda number: f"{number:,}",
    "size": decimal,
    "watermark": watermark,
}


def rendered(template: str, values: Mapping[str, Any]) -> str:
    return templates.get_template(template).render(**values)
