"""The shape of a table, with and without its CHECK constraints."""

from spark_jobs.protocol.table_shape import TableShape


def a_shape(**configuration: str) -> TableShape:
    named = {name.replace("__", "."): value for name, value in configuration.items()}
    return TableShape(table_schema="{}", partition_by=("day",), configuration=named, features=("columnMapping",))


def test_a_shape_without_constraints_keeps_everything_else() -> None:
    mapped = a_shape(delta__columnMapping__mode="name")
    constrained = a_shape(
        delta__columnMapping__mode="name", delta__constraints__small="id < 7", delta__constraints__odd="id % 2 = 1"
    )
    assert constrained.has_constraints
    assert constrained.without_constraints() == mapped
    assert not mapped.has_constraints
    assert mapped.without_constraints() == mapped
