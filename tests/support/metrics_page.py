"""Makes the table in ``docs/reference/metrics.md`` from the table of metrics: ``python -m tests.support.metrics_page``."""

from spark_jobs.control.pipeline_metrics import METRICS, Metric
from tests.support.pages import ROOT

PAGE = ROOT / "docs/reference/metrics.md"
BEGIN, END = "<!-- made by python -m tests.support.metrics_page -->\n", "<!-- end of what is made -->\n"


def table() -> str:
    """Returns the page's table."""
    rows = [["gauge", "by", "unit", "meaning", "in Flink"], ["---"] * 5, *map(_row, METRICS)]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in rows)


def made(page: str) -> str:
    """Returns ``page`` with the current table."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table()}\n{END}{after}"


def _row(metric: Metric) -> list[str]:
    flinks = f"`{metric.flinks_name}`" if metric.flinks_name else ""
    return [f"`{metric.name}`", metric.scope.value, f"`{metric.unit.value}`", metric.description, flinks]


if __name__ == "__main__":
    PAGE.write_text(made(PAGE.read_text()))
