"""Documents that are not what was written."""
