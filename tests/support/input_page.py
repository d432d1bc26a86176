"""Makes the tables in ``docs/reference/inputs.md`` from the cells that the tests try: ``python -m tests.support.input_page``."""

from collections.abc import Sequence

from tests.support.input_cells import CELLS, FILES, LIVE_CELLS, Cell, Event, Source
from tests.support.pages import ROOT

PAGE = ROOT / "docs/reference/inputs.md"
BEGIN = "<!-- {kind} sources: made by python -m tests.support.input_page -->\n"
END = "<!-- end of what is made -->\n"
TABLES = {"bounded": CELLS, "live": LIVE_CELLS}


def table(cells: Sequence[Cell]) -> str:
    """Returns a table of the page."""
    columns = {"Delta": [Source.DELTA], "files": FILES, "Kafka": [Source.KAFKA]}
    events = [event for event in Event if any(cell.event is event for cell in cells)]
    rows = [[event, *(_cell(cells, sources, event) for sources in columns.values())] for event in events]
    return "".join(f"| {' | '.join(row)} |\n" for row in [["", *columns], ["---"] * 4, *rows])


def made(page: str) -> str:
    """Returns ``page`` with the tables as they should be."""
    for kind, cells in TABLES.items():
        begin = BEGIN.format(kind=kind)
        before, _, rest = page.partition(begin)
        _, _, after = rest.partition(END)
        page = f"{before}{begin}\n{table(cells)}\n{END}{after}"
    return page


def _cell(cells: Sequence[Cell], sources: Sequence[Source], event: Event) -> str:
    """Returns the outcome of an event for some sources. Names the sources if the outcomes differ."""
    found: dict[str, list[Source]] = {}
    for cell in cells:
        if cell.event is event and cell.source in sources:
            found.setdefault(f"{cell.outcome}{f': {cell.remedy}' if cell.remedy else ''}", []).append(cell.source)
    texts = [text if len(named) == len(sources) else f"{text} ({', '.join(named)})" for text, named in found.items()]
    return "; ".join(texts) or "-"


if __name__ == "__main__":
    PAGE.write_text(made(PAGE.read_text()))
