"""A pipeline without an end meets bad rows, a table that refuses, and SIGKILL. What is healthy goes on, and nothing is lost unrecorded."""

from pathlib import Path
from random import Random

import duckdb
import pytest
from deltalake import DeltaTable

from spark_jobs.checkpoint.checkpoint_store import CheckpointStore
from spark_jobs.control.losses import LossLedger, LossState
from spark_jobs.control.status import read_status
from spark_jobs.protocol.ids import SinkName, StageName
from spark_jobs.protocol.losses import PassedOver, TableFile
from tests.support import delta_logs, soak_pipeline
from tests.support.drivers import Drivers, drivers_on, ended
from tests.support.killed_drivers import KilledDrivers
from tests.support.live_pipeline import public_ids
from tests.support.opened_tables import opened, with_log
from tests.support.places import IN_A_STORE, ON_A_DISK
from tests.support.run_site import RunSite
from tests.support.soak_pipeline import Orders

pytestmark = pytest.mark.spark

ROUNDS, ROUNDS_IN_S3 = 60, 12
"""The minutes of an hour, and a fifth of them. Each brings one bad order."""
ROWS = 400
BEHIND_MAX = 2
"""In checkpoints."""
HEALTHY = (SinkName("copied"), SinkName("newest"))
REFUSING = SinkName("refusing")


class Soak(KilledDrivers):
    """The site of the pipeline. Each look at its tables remembers how far a healthy one was behind the newest checkpoint."""

    def __init__(self, drivers: Drivers, orders: Orders, random: Random) -> None:
        super().__init__(drivers, random)
        self.orders, self.ledger = orders, LossLedger(self.files)
        self.most_behind = 0

    def refusing(self) -> DeltaTable:
        return opened(self.table(REFUSING))

    def healthy_have_all(self) -> bool:
        """Looks at the healthy tables. Returns True if they show every order."""
        self.most_behind = max([self.most_behind, *(self.behind(sink) for sink in HEALTHY if self.exists(sink))])
        ids = set(public_ids(self.table("copied")))
        return len(ids) == self.orders.rows and self.newest() == self.newest_of_all()

    def is_refused(self) -> bool:
        """Returns True if the table refuses rows: those that are staged, or those that are about to be."""
        status = read_status(self.files)
        failing = status.stages[StageName(REFUSING)].reason if status else None
        return bool(failing and "closed" in failing) or bool(status and status.blocked and status.blocked.held == (REFUSING,))

    def exists(self, sink: str) -> bool:
        return bool(self.drivers.site.publications([sink])[sink])

    def behind(self, sink: SinkName) -> int:
        """Returns the number of complete checkpoints with rows that a table does not show."""
        manifests = CheckpointStore(self.files).manifests()
        with with_log(self.table(sink)) as table:
            public = delta_logs.newest(table, "txn")["version"]
        return sum(each.checkpoint > public and each.sinks[sink].actions.rows > 0 for each in manifests)

    def newest(self) -> dict[int, int]:
        if not self.exists("newest"):
            return {}
        found = opened(self.table("newest")).to_pyarrow_table().to_pydict()
        return dict(zip(found["customer"], found["id"], strict=True))

    def newest_of_all(self) -> dict[int, int]:
        orders = duckdb.from_arrow(DeltaTable(str(self.orders.path)).to_pyarrow_table())
        return dict(orders.query("orders", "SELECT customer, max(id) FROM orders GROUP BY customer").fetchall())

    def left_out(self) -> set[int]:
        """Returns the orders of the files that the ledger names, read from the files."""
        gone = set[int]()
        for entry in self.ledger.entries():
            loss = entry.recorded.loss
            if entry.state is LossState.OPEN:
                assert isinstance(loss, PassedOver)
                assert isinstance(loss.unit, TableFile)
                read = f"SELECT id FROM read_parquet('{self.orders.path}/{loss.unit.path}')"
                gone |= {number for (number,) in duckdb.sql(read).fetchall()}
        return gone

    def has_caught_up(self) -> bool:
        """Returns True if the table that may refuse has every order, and each one is scored or in the ledger."""
        has_all = len(public_ids(self.table(REFUSING))) == self.orders.rows
        return has_all and public_ids(self.table("scored")) == sorted(set(range(self.orders.rows)) - self.left_out())


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("bucket", "rounds"),
    [(ON_A_DISK, ROUNDS), pytest.param(IN_A_STORE, ROUNDS_IN_S3, marks=pytest.mark.stores)],
    indirect=["bucket"],
)
def test_healthy_tables_keep_up_and_the_ledger_has_what_is_missing_until_it_is_backfilled(
    tmp_path: Path, seed: int, bucket: str | None, rounds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders = Orders(tmp_path / "orders")
    site = RunSite(tmp_path / "site", orders.path, soak_pipeline.pipeline, bucket=bucket)
    with drivers_on(site, soak_pipeline.__file__) as drivers:
        soak = Soak(drivers, orders, Random(seed))
        orders.add(ROWS)
        driver = soak.start()
        soak.until(lambda: soak.healthy_have_all() and public_ids(soak.table(REFUSING)), driver)
        for number in range(rounds):
            if number % 2 == 0:
                soak.until(soak.has_caught_up, driver)
                soak.refusing().alter.add_constraint({"closed": f"id < {orders.rows}"})
                orders.add(ROWS)
                soak.until(lambda: soak.healthy_have_all() and soak.is_refused(), driver)
            else:
                orders.add(ROWS)
                soak.wait(3.0)
                soak.kill(driver)
                driver = soak.start()
                soak.refusing().alter.drop_constraint("closed")
                soak.until(soak.healthy_have_all, driver)
        soak.until(soak.has_caught_up, driver)
        assert soak.most_behind <= BEHIND_MAX
        assert len(soak.ledger.entries()) == rounds + 1
        soak.cancel()
        ended(driver)

        monkeypatch.setenv(soak_pipeline.MENDED, "1")
        driver = soak.drivers.start(run="backfill", command="backfill")
        soak.until(lambda: len(public_ids(soak.table("scored"))) == orders.rows, driver)
        soak.until(lambda: {entry.state for entry in soak.ledger.entries()} == {LossState.BACKFILLED}, driver)
        soak.cancel()
        ended(driver)
        for table in ("copied", "scored", REFUSING):
            assert public_ids(soak.table(table)) == list(range(orders.rows))
        assert soak.newest() == soak.newest_of_all()
