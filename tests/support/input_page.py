"""Makes the table in ``docs/reference/inputs.md`` from what the tests try: ``python -m tests.support.input_page``."""

from tests.support.input_cells import CELLS, Event, Source
from tests.support.pages import ROOT

PAGE = ROOT / "docs/reference/inputs.md"
BEGIN, END = "<!-- made by python -m tests.support.input_page -->\n", "<!-- end of what is made -->\n"


def table() -> str:
    """The page's table."""
    header = ["", *Source]
    rows = [[event, *(_cell(source, event) for source in Source)] for event in Event]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in [header, ["---"] * len(header), *rows])


def made(page: str) -> str:
    """``page`` with the table as it should be."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table()}\n{END}{after}"


def _cell(source: Source, event: Event) -> str:
    found = [cell for cell in CELLS if (cell.source, cell.event) == (source, event)]
    return "".join(f"{cell.outcome}{f': {cell.remedy}' if cell.remedy else ''}" for cell in found) or "-"


if __name__ == "__main__":
    PAGE.write_text(made(PAGE.read_text()))
