"""Sources and static inputs, pinned, and the ends of bounded ones."""
