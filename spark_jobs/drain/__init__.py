"""The stop of a pipeline with a savepoint, with or without a drain."""
