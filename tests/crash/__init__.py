"""Power cuts and errors of the operating system."""
