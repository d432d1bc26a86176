"""Makes the table in ``docs/reference/tables.md`` from the features that the tests try: ``python -m tests.support.table_page``."""

from collections.abc import Iterable

from spark_jobs.protocol.documents import Publisher
from tests.support.pages import ROOT
from tests.support.table_features import FEATURES, MODES, REFUSED, Feature

PAGE = ROOT / "docs/reference/tables.md"
BEGIN, END = "<!-- made by python -m tests.support.table_page -->\n", "<!-- end of what is made -->\n"
_REFUSED = "[refused](../adr/0012-what-tables-are-refused.md)"
_PUBLISHERS = {Publisher.DELTA_RS: "delta-rs", Publisher.SPARK: "Spark"}
_READERS = ("Spark", "delta-rs", "DuckDB")


def table() -> str:
    """Returns the page's table."""
    modes = [mode.value for mode in MODES]
    header = ["a table with", *(f"`{mode}`" for mode in modes), "read by"]
    rows = [_row(feature) for feature in FEATURES] + [[refused.title, *[_REFUSED] * len(modes), "none"] for refused in REFUSED]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in [header, ["---"] * len(header), *rows])


def made(page: str) -> str:
    """Returns ``page`` with the current table."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table()}\n{END}{after}"


def _row(feature: Feature) -> Iterable[str]:
    published = (_PUBLISHERS[feature.published_by(mode)] if mode in feature.modes else _REFUSED for mode in MODES)
    readers = (reader for reader in _READERS if reader == "Spark" or reader in feature.readers)
    return [feature.title, *published, ", ".join(readers)]


if __name__ == "__main__":
    PAGE.write_text(made(PAGE.read_text()))
