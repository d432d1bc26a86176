"""The operators, which act on pipelines."""
