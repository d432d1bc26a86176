"""Begins an attempt: decides where from the home's documents, then restores from a work directory, a checkpoint or a savepoint."""
