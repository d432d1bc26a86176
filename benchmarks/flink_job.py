"""The jobs of :mod:`benchmarks.beside_flink` on Flink; run by the Python of an environment with ``apache-flink``.

Usage: ``flink_job.py bounded|live INPUT OUTPUT INTERVAL JARS``. Jars are separated by semicolons.
"""

import sys

from pyflink.common import Configuration
from pyflink.table import EnvironmentSettings, TableEnvironment

PARQUET = "'format' = 'parquet', 'parquet.utc-timezone' = 'true', 'parquet.write.int64.timestamp' = 'true'"


def main(kind: str, source: str, output: str, interval: str, jars: str) -> None:
    settings = {
        "parallelism.default": "2",
        "taskmanager.numberOfTaskSlots": "2",
        "execution.checkpointing.interval": interval,
        "execution.checkpointing.mode": "EXACTLY_ONCE",
        "execution.checkpointing.dir": f"file://{output}/checkpoints",
        "table.local-time-zone": "UTC",
        "pipeline.jars": jars,
    }
    configuration = Configuration()
    for name, value in settings.items():
        configuration.set_string(name, value)
    streaming = EnvironmentSettings.new_instance().in_streaming_mode().with_configuration(configuration).build()
    environment = TableEnvironment.create(streaming)
    (three_tables if kind == "bounded" else one_table)(environment, source, output)


def three_tables(environment: TableEnvironment, source: str, output: str) -> None:
    """A filter, sums by hour and bucket, and the number of rows of each user.

    Flink reads files in no order. With a shorter delay it would drop rows as late, up to seven of ten.
    """
    environment.execute_sql(
        f"""CREATE TABLE events (id BIGINT, `user` INT, `at` TIMESTAMP_LTZ(6), amount DOUBLE,
        happened AS CAST(`at` AS TIMESTAMP_LTZ(3)), bucket AS MOD(`user`, 100), WATERMARK FOR happened AS happened - INTERVAL '8' DAY)
        WITH ('connector' = 'filesystem', 'path' = 'file://{source}', {PARQUET})"""
    )
    _sink(environment, output, "large", "id BIGINT, `user` INT, `at` TIMESTAMP_LTZ(6), amount DOUBLE")
    _sink(environment, output, "hourly", "`hour` TIMESTAMP_LTZ(3), bucket INT, amount DOUBLE, n BIGINT")
    _sink(environment, output, "users", "`user` INT, n BIGINT")
    statements = environment.create_statement_set()
    statements.add_insert_sql("INSERT INTO `large` SELECT id, `user`, `at`, amount FROM events WHERE amount >= 500")
    statements.add_insert_sql(
        """INSERT INTO hourly SELECT window_start, bucket, SUM(amount), COUNT(*)
        FROM TABLE(TUMBLE(TABLE events, DESCRIPTOR(happened), INTERVAL '1' HOUR)) GROUP BY window_start, window_end, bucket"""
    )
    # one window over all: without it, a file sink refuses the updates of a count
    statements.add_insert_sql(
        """INSERT INTO users SELECT `user`, COUNT(*)
        FROM TABLE(TUMBLE(TABLE events, DESCRIPTOR(happened), INTERVAL '9000' DAY(4))) GROUP BY window_start, window_end, `user`"""
    )
    statements.execute().wait()


def one_table(environment: TableEnvironment, source: str, output: str) -> None:
    """A copy of the rows of files that arrive. It has no end."""
    environment.execute_sql(
        f"""CREATE TABLE arriving (id BIGINT, `user` INT)
        WITH ('connector' = 'filesystem', 'path' = 'file://{source}', 'source.monitor-interval' = '100 ms', 'format' = 'json')"""
    )
    _sink(environment, output, "copy", "id BIGINT, `user` INT")
    environment.execute_sql("INSERT INTO copy SELECT id, `user` FROM arriving").wait()


def _sink(environment: TableEnvironment, output: str, name: str, columns: str) -> None:
    environment.execute_sql(
        f"CREATE TABLE `{name}` ({columns}) WITH ('connector' = 'filesystem', 'path' = 'file://{output}/{name}', {PARQUET})"
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
