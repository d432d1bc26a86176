"""The sensors, which only wait for pipelines."""
