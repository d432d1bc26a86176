"""The storage port: access to documents, and the guarantees about their durability."""
