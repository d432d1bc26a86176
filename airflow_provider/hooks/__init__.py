"""The connection type ``stream_pipeline``."""
