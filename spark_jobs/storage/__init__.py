"""The storage port: where documents live, and what is promised about their durability."""
