"""Words, documents, errors and steps."""
