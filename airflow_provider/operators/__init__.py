"""Tasks that act on a pipeline."""
