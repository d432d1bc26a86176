"""The layout of a pipeline's home. No other package knows the path of a document."""
