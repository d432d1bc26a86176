"""What waits for a pipeline share: looks at a home through its documents, and what a look means. An operator and a trigger alike."""
