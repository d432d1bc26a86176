"""Running stages: they are built, run in batches that stage their rows, held, ended and restarted."""
