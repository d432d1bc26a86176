"""Where an attempt begins: decided from the home's documents, then restored from a work directory, a checkpoint or a savepoint."""
