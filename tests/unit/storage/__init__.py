"""The storage port on local files."""
