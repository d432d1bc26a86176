"""How a pipeline is stopped with a savepoint, with or without a drain."""
