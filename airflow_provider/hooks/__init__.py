"""The hook of the connection type ``stream_pipeline``."""
