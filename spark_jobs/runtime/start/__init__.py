"""Begins an attempt: decides from the home's documents where it goes on, and restores from a work directory, checkpoint or savepoint."""
