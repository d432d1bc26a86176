"""Phase 2: what is staged becomes public, once. No JVM is needed."""
