"""Tasks that only wait for a pipeline."""
