"""Pinned sources and static inputs, and the ends of bounded sources."""
