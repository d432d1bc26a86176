"""Phase 2 of a checkpoint: staged rows become public exactly once. No JVM is needed."""
